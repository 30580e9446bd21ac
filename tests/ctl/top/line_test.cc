// SPDX-License-Identifier: Apache-2.0
// What a terminal is sent: nothing that a name could do harm with, and only what differs.
#include "ctl/top/line.h"

#include <string>

#include "ctl/top/screen.h"
#include "ctl/top/sparkline.h"
#include "tests/support/catch.h"

namespace ddprun::top {
namespace {

using ddprun::test::Contains;

TEST_CASE("Line: what could move a cursor is written out, what has no sure width is a sign") {
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
}

TEST_CASE("Line: cut to columns, also amid a wide character, and exactly so many with blanks") {
  CHECK(cut_text("abcdef", 6) == "abcdef");
  CHECK(cut_text("abcdef", 4) == "abc…");
  CHECK(cut_text("計算機", 4) == "計… ");
  CHECK(cut_text("abc", 0).empty());
  Line line;
  line.add_left("ab", 4).add_right("cd", 4, Style::kBold).add_left("計算機", 3);
  CHECK(line.text() == "ab    cd計…");
  CHECK(line.columns() == 11);
  line.cut(5);
  CHECK(line.columns() == 5);
  CHECK(line.text() == "ab  …");
  CHECK(wrapped("one two three", 7, 9) == std::vector<std::string>{"one two", "three"});
  CHECK(wrapped("abcdefghij", 4, 2) == std::vector<std::string>{"abcd", "efg…"});
  CHECK(wrapped("", 10, 3).empty());
}

TEST_CASE("Line: colours, none of them with NO_COLOR, and no escape at all on paper") {
  Line line("bad", Style::kBad);
  line.add(" ▁█ ok…");
  CHECK(shown(line, {true, true, true}) == "\x1b[31;1mbad\x1b[0m ▁█ ok…");
  CHECK(shown(line, {true, false, true}) == "\x1b[1mbad\x1b[0m ▁█ ok…");
  CHECK(shown(line, {false, false, false}) == "bad .@ ok~");
  CHECK(shown(Line("計x"), {false, false, false}) == "??x");
}

TEST_CASE("Screen: only lines that differ are written again") {
  Screen screen({true, false, true});
  CHECK(screen.changes({Line("a"), Line("b"), Line()}, 10) ==
        "\x1b[0m\x1b[2J\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K");
  CHECK(screen.changes({Line("a"), Line("b"), Line()}, 10).empty());
  CHECK(screen.changes({Line("a"), Line("c"), Line()}, 10) == "\x1b[2;1Hc\x1b[K");
  CHECK(screen.changes({Line("a"), Line(), Line()}, 10) == "\x1b[2;1H\x1b[K");
  CHECK(screen.changes({Line("0123456789"), Line(), Line()}, 10) == "\x1b[1;1H0123456789");
  CHECK(screen.changes({Line("x")}, 10) == "\x1b[0m\x1b[2J\x1b[1;1Hx\x1b[K");
  CHECK(screen.changes({Line("x")}, 9) == "\x1b[0m\x1b[2J\x1b[1;1Hx\x1b[K");
  CHECK(screen.changes({Line("x")}, 9).empty());
  screen.forget();
  CHECK_THAT(screen.changes({Line("x")}, 10), Contains("\x1b[2J"));
  CHECK_THAT(Screen::left(), Contains("\x1b[?1049l") && Contains("\x1b[?25h"));
}

TEST_CASE("Sparkline: from the least to the greatest, means where there are more values") {
  CHECK(sparkline({1}, 10).bars.empty());
  CHECK(sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8).bars == "▁▂▃▄▅▆▇█");
  CHECK(sparkline({0, 0, 8, 8}, 2).bars == "▁█");
  CHECK(sparkline({5, 5, 5}, 8).bars == "▄▄▄");
  CHECK(sparkline({1, 2, 3}, 0).bars.empty());
}

}  // namespace
}  // namespace ddprun::top
