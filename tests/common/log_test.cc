// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <string>

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("one_line: line breaks and other control characters are written out") {
  CHECK(one_line("a\nb\tc\rd") == "a\\nb\\tc\\x0dd");
  CHECK(one_line("\x1b[2J\x7f") == "\\x1b[2J\\x7f");
  CHECK(one_line(std::string(1, '\0')) == "\\x00");
}

TEST_CASE("one_line: so is what hides or turns the text around it") {
  CHECK(one_line("job \u202Elive\u202C") == "job \\u202elive\\u202c");   // from right to left
  CHECK(one_line("a\u200Bb\u2060\uFEFF") == "a\\u200bb\\u2060\\ufeff");  // of no width
  CHECK(one_line("a\u2028b") == "a\\u2028b");                            // the end of a line
  CHECK(one_line("\u061C\u2066") == "\\u061c\\u2066");
  CHECK(one_line("\xC2\x9B") == "\\u009b");  // CSI as one character
}

TEST_CASE("one_line: all other text is as it was, also what is no UTF-8") {
  const std::string text = "Knoten-ä1 узел 計算機 e\u0301 🔥 –…\u00A0\u2027\u202F\xFF\xE2\x80";
  CHECK(one_line(text) == text);
  CHECK(one_line(one_line("\u202E\n")) == "\\u202e\\n");
}
