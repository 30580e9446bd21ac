// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/worker_forecast.h"

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using ddprun::membership::StartRound;

namespace {

RoundKnowledge two_nodes() {
  RoundKnowledge known;
  known.nodes = {{.num_workers = 3, .addr = "10.0.0.1"}, {.num_workers = 2, .addr = ""}};
  known.role = "default";
  return known;
}

}  // namespace

TEST_CASE("round forecast: ranks are prefix sums, by the rendezvous' own rules") {
  const auto rounds = forecast_rounds(two_nodes());
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].first_global_rank == 0);
  CHECK(rounds[1].first_global_rank == 3);
  CHECK(rounds[1].world_size == 5);
  CHECK(rounds[1].node_rank == 1);
  CHECK(rounds[1].num_nodes == 2);
  CHECK(rounds[1].round == 1);
}

TEST_CASE("round forecast: an address that isn't known says whose it is") {
  const auto rounds = forecast_rounds(two_nodes());
  CHECK(rounds[0].node_addr == "10.0.0.1");
  CHECK(rounds[1].node_addr == "<this node's address>");
  CHECK(rounds[1].master_addr == "10.0.0.1");
  RoundKnowledge unknown = two_nodes();
  unknown.nodes[0].addr.clear();
  CHECK(forecast_rounds(unknown)[1].master_addr == "<node rank 0's address>");
}

TEST_CASE("round forecast: fixed ranks have the endpoint as their master") {
  RoundKnowledge known = two_nodes();
  known.is_static = true;
  known.endpoint = {.host = "n1", .port = 29500};
  const auto round = forecast_rounds(known)[1];
  CHECK(round.master_addr == "n1");
  CHECK(round.master_port == 29500);
}

TEST_CASE("round forecast: values that are decided later differ in another round, no others") {
  RoundKnowledge known = two_nodes();
  known.store_port = 1234;
  const StartRound round = forecast_rounds(known)[0];
  for (const OtherRound& other : other_rounds(known, round)) {
    CHECK(other.round.first_global_rank == round.first_global_rank);
    CHECK(other.round.master_port == round.master_port);
    CHECK(other.round.node_addr == round.node_addr);
  }
  known.ranks = known.num_nodes = false;
  const auto others = other_rounds(known, round);
  const auto differs = [&](auto field) {
    for (const OtherRound& other : others) {
      if (other.round.*field != round.*field) return true;
    }
    return false;
  };
  CHECK(differs(&StartRound::node_rank));
  CHECK(differs(&StartRound::first_global_rank));
  CHECK(differs(&StartRound::num_nodes));
  CHECK(differs(&StartRound::world_size));
  CHECK_FALSE(differs(&StartRound::restart_count));
}
