// SPDX-License-Identifier: Apache-2.0
#include "agent/output/last_exception.h"
#include "agent/worker_output.h"

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("OutputTail: keeps the last lines of both streams together, 20 for a report") {
  OutputTail tail;
  for (int i = 0; i < 80; ++i) tail.feed(i % 2, "line " + std::to_string(i) + "\n");
  const Lines lines = tail.lines();
  REQUIRE(lines.size() == 20);
  CHECK(lines.front() == "line 60");
  CHECK(lines.back() == "line 79");
  const Lines all = tail.lines(OutputTail::kNumLines);
  REQUIRE(all.size() == OutputTail::kNumLines);
  CHECK(all.front() == "line 16");
  CHECK(all.back() == "line 79");
}

TEST_CASE("OutputTail: a batch of many lines is as good as one line at a time") {
  OutputTail one, other;
  std::string batch = "begin";
  one.feed(0, "begin");
  other.feed(0, "begin");
  batch = " end\n";
  for (int i = 0; i < 150; ++i) batch += std::to_string(i) + "\n";
  batch += "rest";
  one.feed(0, batch);
  for (const char c : batch) other.feed(0, std::string(1, c));
  CHECK(one.lines(OutputTail::kNumLines) == other.lines(OutputTail::kNumLines));
  CHECK(one.lines().back() == "rest");
}

TEST_CASE("OutputTail: a batch of as many lines as are kept keeps the line begun before") {
  OutputTail tail;
  tail.feed(0, "be");
  std::string batch = "gun\n";
  for (std::size_t i = 1; i < OutputTail::kNumLines; ++i) batch += std::to_string(i) + "\n";
  tail.feed(0, batch);
  CHECK(tail.lines(OutputTail::kNumLines).front() == "begun");
}

TEST_CASE("OutputTail: a stack of LibTorch does not push out what was wrong") {
  std::string batch = "  what():  the sizes don't fit\n";
  for (int i = 0; i < 100; ++i) batch += "frame #" + std::to_string(i) + ": f() (0x1 in libc10)\n";
  batch += "Aborted\n";
  OutputTail tail;
  tail.feed(1, batch);
  CHECK(tail.lines() == Lines{"  what():  the sizes don't fit", "frame #0: f() (0x1 in libc10)",
                              "(frames of the stack left out: 99)", "Aborted"});
}

TEST_CASE(
    "last_traceback: the last one, also in torch.distributed's form, or its exception alone") {
  const Lines lines{"Traceback (most recent call last):",
                    "  File \"a.py\"",
                    "KeyError: 'a'",
                    "goes on",
                    "[rank1]: Traceback (most recent call last):",
                    "[rank1]:   File \"b.py\"",
                    "[rank1]: ValueError: b",
                    "leaked"};
  CHECK(last_traceback(lines) == Lines(lines.begin() + 4, lines.end() - 1));
  CHECK(last_traceback({"  File \"a.py\"", "KeyError: 'a'"}) == Lines{"KeyError: 'a'"});
  CHECK(last_traceback({"all is well"}).empty());
  Lines deep{"Traceback (most recent call last):"};
  for (int i = 0; i < 60; ++i) deep.push_back("  line " + std::to_string(i));
  deep.push_back("RecursionError: deep");
  const Lines cut = last_traceback(deep);
  REQUIRE(cut.size() == kMaxTracebackLines);
  CHECK(cut.front() == deep.front());
  CHECK(cut.back() == deep.back());
}

TEST_CASE("OutputTail: the streams' unfinished lines don't mix") {
  OutputTail tail;
  tail.feed(0, "out ");
  tail.feed(1, "err ");
  tail.feed(0, "one\n");
  CHECK(tail.lines() == Lines{"out one", "err "});
}

TEST_CASE("OutputTail: long lines are cut, and memory is bounded") {
  OutputTail tail;
  for (int i = 0; i < 1000; ++i) tail.feed(0, std::string(10'000, 'x'));
  tail.feed(0, "\n");
  REQUIRE(tail.lines().size() == 1);
  CHECK(tail.lines()[0] == std::string(OutputTail::kMaxLineBytes, 'x') + " …");
}

TEST_CASE("OutputTail: the last text of a progress bar is kept") {
  OutputTail tail;
  for (int i = 0; i < 1000; ++i) tail.feed(1, "\r" + std::string(50, '#') + std::to_string(i));
  CHECK(tail.lines() == Lines{std::string(50, '#') + "999"});
  tail.feed(1, "\n");
  CHECK(tail.lines() == Lines{std::string(50, '#') + "999"});
}

TEST_CASE("printable_line: valid UTF-8 without control characters") {
  CHECK(printable_line("plain\ttext") == "plain\ttext");
  CHECK(printable_line("caf\u00e9 \U0001F600") == "caf\u00e9 \U0001F600");
  CHECK(printable_line("\xff\xfe") == "\uFFFD\uFFFD");
  CHECK(printable_line("\xc3") == "\uFFFD");
  CHECK(printable_line("\xed\xa0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(printable_line(std::string("a\0b", 3)) == "a\uFFFDb");
  CHECK(printable_line("\x1b[31mred\x1b[0m") == "red");
  CHECK(printable_line("crlf\r") == "crlf");
}

TEST_CASE("printable_line: a cut goes through no character") {
  std::string line(OutputTail::kMaxLineBytes - 1, 'x');
  CHECK(printable_line(line + "\u00e9\u00e9") == line + " …");
}

TEST_CASE("OutputTail: characters that hide or turn text are replaced, others stay") {
  CHECK(printable_line("a\xC2\x9B"
                       "31mb\xE2\x80\xAE"
                       "c\xE2\x80\xA8"
                       "d\xC2\x85"
                       "e \xC3\xA4\xE2\x82\xAC") ==
        "a\xEF\xBF\xBD"
        "31mb\xEF\xBF\xBD"
        "c\xEF\xBF\xBD"
        "d\xEF\xBF\xBD"
        "e \xC3\xA4\xE2\x82\xAC");
}

}  // namespace
}  // namespace ddprun::agent
