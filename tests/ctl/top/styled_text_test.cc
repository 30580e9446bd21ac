// SPDX-License-Identifier: Apache-2.0
// A terminal is given nothing that a name could do harm with, in lines of a known width.
#include "ctl/top/styled_text.h"

#include <string>

#include "common/text.h"
#include "tests/ctl/top/sample_state.h"
#include "tests/support/catch.h"

namespace ddprun::top {
namespace {

Lines wrapped(std::string_view text, std::size_t columns, std::size_t most) {
  Lines lines;
  add_wrapped(lines, text, columns, kPlain, most);
  for (std::string& line : lines) line = without_styles(line);
  return lines;
}

TEST_CASE(
    "top's text: characters that could move a cursor are written out, those without a sure width "
    "become a sign") {
  CHECK(harmless("a\x1b[2Jb\nc\td\x7f") == "a\\x1b[2Jb\\nc\\td\\x7f");
  CHECK(harmless("\xc2\x9b") == "\\u009b");  // CSI as one character
  CHECK(harmless("\xe2\x80\xae"
                 "abc") == "\\u202eabc");      // from right to left
  CHECK(harmless("e\xcc\x81") == "e?");        // a combining accent
  CHECK(harmless("\xf0\x9f\x94\xa5") == "?");  // an emoji
  CHECK(harmless("\xff\xfe\x80"
                 "a\xe2\x82") == "???a??");  // no UTF-8
  CHECK(harmless("Knoten-ä1 узел") == "Knoten-ä1 узел");
  CHECK(columns_of(harmless("計算機01")) == 8);
  CHECK(harmless(std::string(1 << 20, 'x')).size() < 20'000);
  for (int byte = 0; byte < 0x100; ++byte) {
    for (const char left : harmless(std::string(1, static_cast<char>(byte)))) CHECK(left >= ' ');
  }
}

TEST_CASE(
    "top's text: cut to columns, also amid a wide character, and exactly so many with blanks") {
  CHECK(cut("abcdef", 6) == "abcdef");
  CHECK(cut("abcdef", 4) == "abc…");
  CHECK(cut("計算機", 4) == "計… ");
  CHECK(cut("abc", 0).empty());
  CHECK(cut(concat(kBad, "ab", kPlain, "cdef"), 4) == concat(kBad, "ab", kPlain, "c…"));
  CHECK(left("ab", 4) + right("cd", 4) + left("計算機", 3) == "ab    cd計…");
  CHECK(columns_of(concat(kBold, "計", kPlain, "a")) == 3);
  CHECK(wrapped("one two three", 7, 9) == Lines{"one two", "three"});
  CHECK(wrapped("abcdefghij", 4, 2) == Lines{"abcd", "efg…"});
  CHECK(wrapped("", 10, 3).empty());
}

TEST_CASE("top's text: it has no styles on paper, and the same width in ASCII") {
  const std::string line = concat(kBad, "bad", kPlain, " ▁█ ok…  ");
  CHECK(without_styles(line) == "bad ▁█ ok…");
  CHECK(without_styles(in_ascii(line)) == "bad .@ ok~");
  CHECK(in_ascii("計x") == "??x");
}

}  // namespace
}  // namespace ddprun::top
