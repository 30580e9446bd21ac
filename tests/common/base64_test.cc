// SPDX-License-Identifier: Apache-2.0
#include "common/byte_text.h"

#include <optional>
#include <string>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("base64: bytes come back, and it is as others write it") {
  CHECK(to_base64("") == "");
  CHECK(to_base64("leader") == "bGVhZGVy");
  CHECK(to_base64("leade") == "bGVhZGU=");
  CHECK(to_base64("lead") == "bGVhZA==");
  CHECK(to_base64("\xfb\xff\xfe") == "+//+");
  std::string bytes;
  for (int i = 0; i < 1000; ++i) {
    CHECK(from_base64(to_base64(bytes)) == bytes);
    bytes += static_cast<char>(i * 7);
  }
}

TEST_CASE("base64: a text that no encoder writes is refused") {
  for (const char* text : {"A", "AA", "AAA", "AAAAA", "A===", "====", "AA=A", "AAA=AAAA", "AA A",
                           "AB==", "AAB=", "AA\n=", "-_-_"}) {
    CAPTURE(text);
    CHECK(from_base64(text) == std::nullopt);
  }
}

}  // namespace
}  // namespace ddprun
