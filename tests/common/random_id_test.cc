// SPDX-License-Identifier: Apache-2.0
#include "common/random_id.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("random_id: 32 hexadecimal digits, others each time") {
  const std::string id = random_id();
  CHECK(id.size() == 32);
  CHECK(id.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(random_id() != id);
}

TEST_CASE("to_hex: two digits for each byte, the first byte first") {
  CHECK(to_hex(RandomBytes{0x01, 0xAB, 0xF0}) == "01abf0" + std::string(26, '0'));
}
