// SPDX-License-Identifier: Apache-2.0
// The output of ranks: the rendezvous asks for it, and an agent answers.
#include "rendezvous/membership/machine.h"
#include "tests/agent/link/agent_node.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

// Two nodes with two workers each, in round 1.
struct TailedJob : Script {
  TailedJob() : Script(2, 1, journalled()) {
    for (const char* name : {"1", "2"}) {
      Join join = make_join(name);
      join.num_workers = 2;
      this->join(name, join);
    }
    for (const char* name : {"1", "2"}) says(name, WorkersRunning{1});
    keep();
  }
};

TEST_CASE("Tail: the agent of a rank's node is asked, and what it says comes back") {
  TailedJob j;
  const TailRoute route = j.asks_for_tail(3, 17);
  CHECK(route.connection == j.agents["2"].connection);
  CHECK(j.last<TailWanted>("1") == nullptr);
  CHECK(j.got<TailWanted>("2").round == 1);
  CHECK(j.got<TailWanted>("2").request == 17);
  CHECK(j.got<TailWanted>("2").global_rank == 3);
  j.mentions("2", Tail{17, {"step 40", "step 41"}, "a note"});
  REQUIRE(j.tails.size() == 1);
  CHECK(j.tails[0].connection == j.agents["2"].connection);
  CHECK(j.tails[0].tail.request == 17);
  CHECK(j.tails[0].tail.lines == std::vector<std::string>{"step 40", "step 41"});
  CHECK(j.tails[0].tail.note == "a note");
  CHECK(j.table.take_changes().empty());  // the journal keeps nothing of it
}

TEST_CASE("Tail: the reason why nobody is asked is said") {
  TailedJob j;
  const auto why = [&](int rank) {
    const TailRoute route = j.asks_for_tail(rank, 1);
    CHECK_FALSE(route.connection);
    return route.why_not;
  };
  CHECK(why(4) == "there is no rank 4 in round 1");
  j.closes("2");
  CHECK_THAT(why(2), Contains("node 1 (2, 10.0.0.2) has no connection to the rendezvous"));
  CHECK(j.asks_for_tail(1, 1).connection);
  Script forming(2);
  forming.join("1");
  CHECK(forming.asks_for_tail(0, 1).why_not == "no round has begun yet");
  CHECK(Script(1).asks_for_tail(0, 1).why_not == "no job of that name runs here");
}

TEST_CASE("Tail: a job that has ended is not asked") {
  TailedJob j;
  for (const char* name : {"1", "2"}) j.says(name, WorkersSucceeded{1});
  CHECK(j.asks_for_tail(0, 1).why_not == "the job has ended");
}

TEST_CASE("Tail: workers of a round that is over are asked for their last lines") {
  TailedJob j;
  j.fails("2", 1, 9);
  CHECK(j.asks_for_tail(2, 5).connection);
  j.mentions("2", Tail{5, {"Traceback"}, ""});
  CHECK(j.tails.back().tail.lines.front() == "Traceback");
}

TEST_CASE("Tail: several ranks are asked at once, each with a number of its own") {
  TailedJob j;
  const auto routes = j.asks_for_tails({{0, 3, 9}, 40, TailKind::kStack});
  REQUIRE(routes.size() == 3);
  CHECK(routes[0].connection == j.agents["1"].connection);
  CHECK(routes[1].connection == j.agents["2"].connection);
  CHECK(routes[0].host == "1");
  CHECK(routes[2].why_not == "there is no rank 9 in round 1");
  CHECK(j.got<TailWanted>("1").request == 40);
  CHECK(j.got<TailWanted>("2").request == 41);
  CHECK(j.got<TailWanted>("2").kind == TailKind::kStack);
  CHECK(j.table.num_ranks("job") == 4);
  CHECK_FALSE(j.table.num_ranks("another"));
}

// An agent of version 2 knows the message, and would answer with the rank's output.
TEST_CASE("Tail: an agent that knows no stacks is asked for output alone") {
  Script j(1);
  Join join = j.make_join("1");
  join.version = kTailVersion;
  j.join("1", join);
  j.says("1", WorkersRunning{1});
  const TailRoute route = j.asks_for_tails({{0}, 7, TailKind::kStack}).front();
  CHECK_THAT(route.why_not, Contains("is of an older version"));
  CHECK(j.last<TailWanted>("1") == nullptr);
  CHECK(j.asks_for_tail(0, 8).connection);
}

TEST_CASE("Tail: an agent finds out, and says it while it is connected") {
  AgentNode node;
  node.run();
  node.hear(TailWanted{1, 17, 3}, false);
  const auto* read = node.last<agent_action::ReadTail>();
  REQUIRE(read != nullptr);
  CHECK(read->round == 1);
  CHECK(read->request == 17);
  CHECK(read->global_rank == 3);
  node(agent_event::TailRead{17, {"a line"}, ""});
  REQUIRE(node.said<Tail>() != nullptr);
  CHECK(node.said<Tail>()->lines == std::vector<std::string>{"a line"});
  node.actions.clear();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::TailRead{18, {}, ""});
  CHECK(node.said<Tail>() == nullptr);
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.welcome();
  CHECK(node.said<Tail>() == nullptr);  // nobody waits for the answer any more
}

}  // namespace
}  // namespace ddprun::membership::testing
