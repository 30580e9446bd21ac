// SPDX-License-Identifier: Apache-2.0
// The judge of what nodes see of rounds notices the messages of a rendezvous with a bug.
#include "bench/fleet/round_check.h"

#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

using bench::RoundCheck;
using ddprun::test::Contains;

// The StartRound for node `rank` of two, with four workers each.
StartRound start(std::uint64_t round, int rank) {
  StartRound message;
  message.round = round;
  message.restart_count = static_cast<int>(round) - 1;
  message.node_rank = rank;
  message.num_nodes = 2;
  message.first_global_rank = 4 * rank;
  message.world_size = 8;
  message.master_node_addr = "10.0.0.1";
  message.master_port = 40000;
  return message;
}

std::string problem(RoundCheck& check, const StartRound& message) {
  return check.started(message).value_or("");
}

RoundCheck two_nodes(bool in_order = true) { return RoundCheck({1, 2, 4, in_order}); }

TEST_CASE("RoundCheck: rounds that follow each other, whole, are right") {
  RoundCheck check = two_nodes();
  CHECK(problem(check, start(1, 1)).empty());
  CHECK_FALSE(check.complete());
  CHECK(problem(check, start(1, 0)).empty());
  CHECK(check.complete());
  check.emptied(1);
  check.emptied(1);
  CHECK(problem(check, start(2, 0)).empty());
  CHECK(problem(check, start(2, 1)).empty());
  CHECK(check.round() == 2);
  CHECK(check.num_live() == 2);
}

TEST_CASE("RoundCheck: each bug of a rendezvous is named") {
  RoundCheck check = two_nodes();
  REQUIRE(problem(check, start(2, 0)).empty());
  StartRound message = start(2, 1);
  SECTION("a round that is too large") {
    RoundCheck other = two_nodes();
    message.num_nodes = 3;
    CHECK_THAT(problem(other, message), Contains("it has 3 nodes"));
  }
  SECTION("a stale round") { CHECK_THAT(problem(check, start(1, 1)), Contains("after round 2")); }
  SECTION("a round before the last one had started everywhere") {
    CHECK_THAT(problem(check, start(3, 0)), Contains("round 2 had not started"));
  }
  SECTION("two live rounds") {
    RoundCheck lossy = two_nodes(false);
    REQUIRE(problem(lossy, start(1, 0)).empty());
    CHECK_THAT(problem(lossy, start(2, 1)), Contains("workers of another round live on 1"));
  }
  SECTION("the one node, told two rounds") {
    check.emptied(2);
    REQUIRE(problem(check, message).empty());
    CHECK_THAT(problem(check, start(3, 0)), Contains("live on 1"));
  }
  SECTION("a rank given twice") {
    CHECK_THAT(problem(check, start(2, 0)), Contains("node rank 0 was given twice"));
  }
  SECTION("a rank out of range") {
    CHECK_THAT(problem(check, start(2, 2)), Contains("node rank 2 of 2"));
  }
  SECTION("another size") {
    message.world_size = 12;
    CHECK_THAT(problem(check, message), Contains("12 workers"));
  }
  SECTION("global ranks with a gap") {
    message.first_global_rank = 5;
    CHECK_THAT(problem(check, message), Contains("begins with rank 5"));
  }
  SECTION("two masters") {
    message.master_node_addr = "10.0.0.2";
    CHECK_THAT(problem(check, message), Contains("two masters"));
  }
  SECTION("a restart count of its own") {
    message.restart_count = 0;
    CHECK_THAT(problem(check, message), Contains("restart count 0"));
  }
}

}  // namespace
}  // namespace ddprun::membership::testing
