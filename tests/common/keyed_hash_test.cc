// SPDX-License-Identifier: Apache-2.0
#include "common/keyed_hash.h"

#include <string>
#include <utility>

#include "tests/support/catch.h"

using namespace ddprun;

// Values of CPython 3.11, which hashes bytes with SipHash-1-3. PYTHONHASHSEED=1; the input is the
// first `size` of the bytes 0, 1, 2, … Python makes the key from the seed.
TEST_CASE("sip_hash: the values of CPython's SipHash-1-3") {
  const SipKey key{0xaed66ce184be2329, 0xebe9bbf1f1499052};
  const std::pair<std::size_t, std::uint64_t> values[] = {
      {1, 0xecd3e5afcecda4b9},  {2, 0xbf360f1ea1745965},  {3, 0x8d5b20ab227ba858},
      {4, 0x968a3280faeeb716},  {5, 0xbbda3b5f513c3d69},  {6, 0xa77f099d6ffed90e},
      {7, 0xfd15e78052a69ddf},  {8, 0xc0b5739e7e28dd01},  {9, 0x208a1a5a0cbbf778},
      {10, 0xb99907ab3e3e597c}, {11, 0x4d9ec6e9c5127521}, {12, 0x9b07906e87e344ad},
      {13, 0x75973ed5708eb192}, {14, 0x3a6b5d52e1c90862}, {15, 0xfa87985f39e97a53},
      {16, 0x12e9d283f9f37002}, {17, 0x9f5bb4237f61907f}, {63, 0x542052345bc68274},
  };
  for (const auto& [size, value] : values) {
    CAPTURE(size);
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(i);
    CHECK(sip_hash(bytes, key) == value);
  }
}
