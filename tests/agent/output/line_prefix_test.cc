// SPDX-License-Identifier: Apache-2.0
#include "agent/output/line_prefix.h"

#include <cstdlib>

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

const PrefixValues kValues{"tr", "vm", 1, 5, 2};

std::string filled(std::string_view text) { return LinePrefix(text).text(kValues, 0); }

TEST_CASE("line prefix: macros are filled in, unknown ones stay") {
  CHECK(filled("<${role_name}|${local_rank}|${rank}|${hostname}|${node_rank}|${foo}> ") ==
        "<tr|1|5|vm|2|${foo}> ");
  CHECK(filled(LinePrefix::kTeeTemplate) == "[tr1]:");
  CHECK(filled(LinePrefix::kRankTemplate) == "[5] ");
  CHECK(filled("").empty());
}

TEST_CASE("line prefix: the rules of Python's string.Template") {
  CHECK(filled("$rank:$ranks $$rank") == "5:$ranks $rank");
  CHECK(filled("${rank $ ${} ${rank}") == "${rank $ ${} 5");
  CHECK(filled("$") == "$");
  CHECK(filled("a$$") == "a$");
}

TEST_CASE("line prefix: a spare's worker has no rank yet") {
  CHECK(LinePrefix("[${rank}] ").text({"r", "h", 0, -1, -1}, 0) == "[spare] ");
}

TEST_CASE("line prefix: the time is local, and only looked at where it is asked for") {
  ::setenv("TZ", "UTC0", 1);
  CHECK_FALSE(LinePrefix("${rank}").has_time());
  const LinePrefix prefix("${time} ");
  CHECK(prefix.has_time());
  CHECK(prefix.text(kValues, 3661) == "01:01:01 ");
}

TEST_CASE("line prefix: neighbours have different colours") {
  const std::string zero = LinePrefix::coloured("[0] ", 0);
  CHECK(zero.starts_with("\x1b["));
  CHECK(zero.ends_with("m[0] \x1b[0m"));
  CHECK(LinePrefix::coloured("x", 0) != LinePrefix::coloured("x", 1));
  CHECK(LinePrefix::coloured("", 3).empty());
  CHECK(LinePrefix::coloured("[spare] ", -1) == "[spare] ");
}

}  // namespace
}  // namespace ddprun::agent
