// SPDX-License-Identifier: Apache-2.0
#include "common/process_stat.h"

#include <optional>
#include <string>

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

std::optional<ProcessStat> parse(const std::string& text) {
  ProcessStat stat;
  return parse_process_stat(text.c_str(), &stat) ? std::optional(stat) : std::nullopt;
}

}  // namespace

TEST_CASE("process stat: fields after a name that may hold anything") {
  const auto stat =
      parse("71 (a) R 5 (x) S 42 71 71 0 -1 4194560 1 2 3 4 100 23 7 8 20 0 1 0 99 5");
  REQUIRE(stat);
  CHECK(stat->state == 'S');
  CHECK(stat->parent == 42);
  CHECK(stat->cpu_ticks == 123);  // the children's 7 and 8 don't count
  CHECK(stat->start_ticks == 99);
  CHECK(stat->ignored == 0);  // the line ends before that field
  CHECK(stat->caught == 0);
  const auto all = parse(
      "71 (a) S 42 71 71 0 -1 0 1 2 3 4 100 23 7 8 20 0 1 0 99 5 6 7 8 9 10 11 12 13 14 6 16");
  REQUIRE(all);
  CHECK(all->ignored == 6);
  CHECK(all->caught == 16);
}

TEST_CASE("process stat: a text that is cut off or of another form is refused") {
  for (const char* text : {"", "71 (a", "71 (a)", "71 (a) ", "71 (a)S 1", "71 (a) S 42 71 71",
                           "71 (a) S 42 71 71 0 -1 0 1 2 3 4 100 23 7 8 20 0 1 0"}) {
    CAPTURE(text);
    CHECK_FALSE(parse(text));
  }
}

TEST_CASE("process stat: the facts of this process are read, those of a missing one aren't") {
  ProcessStat stat;
  REQUIRE(read_process_stat(::getpid(), &stat));
  CHECK(stat.parent == ::getppid());
  CHECK(stat.state == 'R');
  CHECK(stat.start_ticks > 0);
  CHECK_FALSE(read_process_stat(0, &stat));
}
