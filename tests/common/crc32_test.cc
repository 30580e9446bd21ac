// SPDX-License-Identifier: Apache-2.0
#include "common/crc32.h"

#include <string>

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("crc32: it has the standard's check value, and 0 for no bytes") {
  CHECK(crc32(0, "123456789") == 0xcbf43926);
  CHECK(crc32(0, "") == 0);
  CHECK(crc32(0, "The quick brown fox jumps over the lazy dog") == 0x414fa339);
}

TEST_CASE("crc32: pieces give the same as the whole") {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37);
  const std::uint32_t whole = crc32(0, text);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    CHECK(crc32(crc32(0, text.substr(0, cut)), text.substr(cut)) == whole);
  }
}
