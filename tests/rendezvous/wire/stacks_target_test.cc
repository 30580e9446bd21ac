// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/stacks_target.h"

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

TEST_CASE("stacks_target: any name of a job comes back") {
  for (const char* name : {"job", "", "a b&ranks=1", "100%", "caf\xc3\xa9", "x=y?z/\n"}) {
    CAPTURE(name);
    const std::string text = stacks_target({name, "0-3,5"});
    CHECK(text.find_first_of(" \n") == text.npos);
    const auto target = parse_stacks_target(text);
    REQUIRE(target);
    CHECK(target->run_id == name);
    CHECK(target->ranks == "0-3,5");
  }
  CHECK(stacks_target({"job", ""}) == "/v1/stacks?job=job");
}

TEST_CASE("parse_stacks_target: another text is refused") {
  for (const char* text : {"", "/v1/jobs?job=a", "/v1/stacks?jobs=a", "/v1/stacks?job=%4",
                           "/v1/stacks?job=%zz", "/v1/stacks?job=a&more=1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_stacks_target(text));
  }
}

TEST_CASE("parse_rank_list: ranks ascend, each once, below the end") {
  CHECK(parse_rank_list("5,0-2,1", 6) == std::vector<int>{0, 1, 2, 5});
  CHECK(parse_rank_list("3", 4) == std::vector<int>{3});
  for (const char* text :
       {"", ",", "1,", ",1", "a", "1-", "-1", "2-1", "6", "0-6", "1--2", "1 2", "99999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_rank_list(text, 6));
  }
  CHECK_FALSE(parse_rank_list("0", 0));
}

}  // namespace
}  // namespace ddprun::membership
