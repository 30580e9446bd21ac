// SPDX-License-Identifier: Apache-2.0
// A connection that ends, is silent, or comes back.
#include <csignal>

#include "tests/agent/link/agent_node.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;

TEST_CASE("AgentMachine: a lost link keeps the workers and resends what was not confirmed") {
  AgentNode node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  CHECK(node.last<agent_action::Connect>()->timeout == 60s);
  node.actions.clear();
  node(agent_event::WorkersSucceeded{1});
  CHECK(node.said<WorkersSucceeded>() == nullptr);
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->session == "s");
  node.welcome();
  CHECK(node.said<WorkersSucceeded>() != nullptr);
}

TEST_CASE("AgentMachine: a round that ends before the welcome makes no second join") {
  AgentNode node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  node.actions.clear();
  WorkerFailure failure;
  failure.exit_code = 9;
  node(agent_event::WorkerFailed{1, failure, node.now});
  node(agent_event::WorkersGone{1});
  CHECK(node.bound.size() == 2);
  CHECK(node.said<Join>() == nullptr);
  node.welcome();
  CHECK(node.said<WorkerFailed>() != nullptr);
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->store_port == 4001);
  // The next connection names the one that is bound.
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->store_port == 4001);
}

TEST_CASE("AgentMachine: a rendezvous that has forgotten what it confirmed is not the same one") {
  AgentNode node;
  node.run();
  node(agent_event::WorkersRunning{1});
  node(agent_event::LinkMessage{{0, 1, Waiting{}}});  // the rendezvous confirms the message
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->confirmed == 1);
  node.welcome();
  const auto* stop = node.last<agent_action::StopWorkers>();
  REQUIRE(stop != nullptr);
  CHECK(stop->grace == node.options.fence_grace);
  node(agent_event::WorkersGone{1});
  const auto* end = node.last<agent_action::Exit>();
  REQUIRE(end != nullptr);
  CHECK(end->verdict.exit_code == 75);
  CHECK_THAT(end->verdict.reason,
             Contains("had confirmed message 1 of this node and knows 0 now: its journal lost"));
}

TEST_CASE("AgentMachine: the times of steps are said again to a rendezvous that comes back") {
  AgentNode node;
  node.run();
  TrainingStatus training;
  training.step = 7;
  node(agent_event::StepsTimed{1, {{3, 10ms, 9ms}}, {}});
  node(agent_event::StepsTimed{1, {}, training});
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.actions.clear();
  node.welcome();
  const auto* said = node.said<StepTimes>();
  REQUIRE(said != nullptr);
  REQUIRE(said->ranks.size() == 1);
  CHECK(said->ranks[0].global_rank == 3);
  REQUIRE(said->training);
  CHECK(said->training->step == 7);
}

TEST_CASE("AgentMachine: a failed worker ends the round here if there is no link") {
  AgentNode node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::WorkerFailed{1, {}});
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
}

TEST_CASE("AgentMachine: refused by a rendezvous that ends, it joins the next one as a new node") {
  AgentNode node;
  node.say_join();
  const bool was_taken_in = GENERATE(false, true);
  if (was_taken_in) node.welcome(true);
  node.actions.clear();
  node.hear(Refused{"it ends", 75, true}, false);
  CHECK(node.last<agent_action::CloseLink>() != nullptr);
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("it ends; trying again"));
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->session.empty());
  CHECK(node.said<Join>()->store_port == 4000);
  // It tries again, but not for ever.
  node.now += node.options.connect_timeout;
  node.hear(Refused{"it ends", 75, true}, false);
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
}

TEST_CASE("AgentMachine: silence fences: the workers stop at once") {
  AgentNode node;
  node.run();
  node(agent_event::LinkDown{true, "silence"});
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>()->grace == kFenceGrace);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  node(agent_event::WorkersGone{1});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.hear(Refused{"given up as lost", 75}, false);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
}

TEST_CASE("AgentMachine: an agent that stood still says so before the reason of its end") {
  AgentNode node;
  node.run();
  const bool stood_still = GENERATE(true, false);
  node.now += stood_still ? 14s : 5500ms;
  node(agent_event::LinkDown{true, "silence"});
  node(agent_event::WorkersGone{1});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.hear(Refused{"given up as lost", 75}, false);
  const std::string reason = node.last<agent_action::Exit>()->verdict.reason;
  if (stood_still) {
    CHECK(reason ==
          "this ddprun stood still for 14 s (stopped by a signal, or its machine was "
          "paused); then: given up as lost");
  } else {
    CHECK(reason == "given up as lost");
  }
}

TEST_CASE("AgentMachine: the time of its workers' end is said by the rendezvous' clock") {
  AgentNode node;
  node.run();
  const bool known = GENERATE(true, false);
  if (known) node(agent_event::ClockSampled{node.now, 500s, node.now});
  node.hear(StopRound{1, "why"});
  node.now += 2s;
  node(agent_event::WorkersGone{1});
  node.now += 3s;
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->gone_at_us == (known ? 502'000'000 : 0));
}

TEST_CASE("AgentMachine: an agent that stood still knows that it may have been given up") {
  AgentNode node;
  node.run();
  SECTION("an end of connection after the keep-alive time is silence") {
    node.now += 5s;
    node(agent_event::LinkDown{false, "EOF"});
    CHECK(node.last<agent_action::StopWorkers>()->grace == kFenceGrace);
    CHECK(node.last<agent_action::Lease>()->until != std::nullopt);
  }
  SECTION("one before it is not") {
    node.now += 4900ms;
    node(agent_event::LinkDown{false, "EOF"});
    CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  }
  SECTION("refused: others may go on without it") {
    node(agent_event::LinkDown{false, "EOF"});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node.hear(Refused{"given up as lost", 75}, false);
    CHECK(node.last<agent_action::StopWorkers>()->grace == kFenceGrace);
  }
  SECTION("a round that it is told to start late may be over") {
    node.hear(StopRound{1, "why"});
    node(agent_event::WorkersGone{1});
    node.actions.clear();
    node.now += 5s;
    node.start(2);
    CHECK(node.last<agent_action::Spawn>() == nullptr);
    CHECK(node.last<agent_action::ServeStore>() == nullptr);
    REQUIRE(node.said<WorkersStopped>() != nullptr);
    CHECK(node.said<WorkersStopped>()->round == 2);
    CHECK(node.said<WorkersStopped>()->store_port == 4001);
    node(agent_event::LinkAnswered{node.now});
    node.start(3);
    CHECK(node.last<agent_action::Spawn>()->round.round == 3);
  }
}

TEST_CASE("AgentMachine: workers live on a lease that the rendezvous' answers renew") {
  AgentNode node;
  node.run();
  const auto until = [&] { return node.last<agent_action::Lease>()->until; };
  CHECK(until() == node.now + 5s + kFenceGrace);
  const Clock::time_point pinged = node.now + 1s;
  node.pass(2s);
  node(agent_event::LinkAnswered{pinged});
  CHECK(until() == pinged + 5s + kFenceGrace);
  node(agent_event::LinkAnswered{pinged - 500ms});  // a late answer shortens nothing
  CHECK(until() == pinged + 5s + kFenceGrace);
  SECTION("an ended connection is no silence") {
    node(agent_event::LinkDown{false, "reset"});
    CHECK(until() == std::nullopt);
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node.welcome();
    CHECK(until() == node.now + 5s + kFenceGrace);
  }
  SECTION("workers run on alone for a time if another of several rendezvous may lead soon") {
    AgentNode several;
    several.options.endpoints.push_back({"b", 29400});
    several.begin();
    several.run();
    several(agent_event::LinkDown{false, "reset"});
    CHECK(several.last<agent_action::Lease>()->until ==
          several.now + several.options.join.timeouts.rendezvous_lost + 30s);
  }
  SECTION("workers that are being stopped keep theirs: the grace may be longer") {
    node.hear(StopRound{1, "why"});
    node(agent_event::LinkAnswered{node.now});
    CHECK(until() == node.now + 5s + kFenceGrace);
  }
  SECTION("nobody takes their ranks at the job's end") {
    node.hear(JobEnd{1, "why", {}, 1});
    CHECK(until() == std::nullopt);
    node(agent_event::LinkAnswered{node.now});
    CHECK(until() == std::nullopt);
  }
  SECTION("it runs out") {
    node(agent_event::WorkersFenced{1});
    CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("stood still"));
    CHECK(node.last<agent_action::StopWorkers>()->grace == 0s);
    node(agent_event::WorkersGone{1});
    CHECK(node.said<WorkersStopped>() != nullptr);
    CHECK(node.said<WorkerFailed>() == nullptr);
  }
}

TEST_CASE("AgentMachine: a failure is dated by the rendezvous' clock, once that is known") {
  AgentNode node;
  node.run();
  WorkerFailure failure;
  failure.exit_code = 3;
  const Clock::time_point death = node.now + 100ms;
  SECTION("known") {
    node(agent_event::ClockSampled{node.now, 7'000'001ms, node.now + 2ms});
    node.pass(1s);
    node(agent_event::WorkerFailed{1, failure, death});
    REQUIRE(node.said<WorkerFailed>() != nullptr);
    CHECK(node.said<WorkerFailed>()->failure.died_at_us == 7'000'100'000);
    CHECK(node.said<WorkerFailed>()->failure.clock_error_us >= 1000);
    CHECK(node.said<WorkerFailed>()->failure.clock_error_us < 1100);
  }
  SECTION("known from the welcome") {
    node(agent_event::LinkDown{false, "reset"});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node.now += 80ms;
    Welcome welcome;
    welcome.session = "s";
    welcome.clock_us = 5'000'000;
    node.hear(welcome, false);
    node(agent_event::WorkerFailed{1, failure, node.now});
    CHECK(node.said<WorkerFailed>()->failure.died_at_us == 5'040'000);
    CHECK(node.said<WorkerFailed>()->failure.clock_error_us == 40'008);
  }
  SECTION("the offset isn't known") {
    node(agent_event::WorkerFailed{1, failure, death});
    CHECK(node.said<WorkerFailed>()->failure.died_at_us == 0);
  }
  SECTION("a failure from before the stop, seen after it, is said before the workers are gone") {
    node.hear(StopRound{1, "another rank"});
    node(agent_event::WorkerFailed{1, failure, death});
    CHECK(node.said<WorkerFailed>() != nullptr);
    node(agent_event::WorkersGone{1});
    CHECK(node.said<WorkersStopped>() != nullptr);
  }
}

TEST_CASE("AgentMachine: a rendezvous that is gone for good ends the node with 69") {
  AgentNode node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkFailed{"can't reach it"});
  node(agent_event::WorkersGone{1});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
  CHECK(node.last<agent_action::Exit>()->local);
}

TEST_CASE("AgentMachine: the loss of the node that serves the rendezvous is a node's loss: 75") {
  AgentNode node;
  node.say_join();
  Welcome welcome;
  welcome.session = "s";
  welcome.embedded = true;
  node.hear(welcome);
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkFailed{"connection refused"});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
  CHECK(
      node.last<agent_action::Exit>()->verdict.reason ==
      "lost the node that serves the rendezvous, without which the job can't go on: it was in that "
      "node's ddprun and is gone with it, and no standby was named (several ddprund outlive each "
      "other: --rdzv-endpoint=a,b, docs/ha.md); connection refused");
}

TEST_CASE(
    "AgentMachine: a rendezvous that takes the connection and says no more is left for others") {
  for (const bool has_others : {false, true}) {
    CAPTURE(has_others);
    AgentNode node;
    node.options.connect_timeout = 40s;
    if (has_others) node.options.endpoints.push_back({"other", 29500});
    node.begin();
    node(agent_event::Start{});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1", {"head", 29500}});
    node.actions.clear();
    node.pass(node.options.welcome_timeout);
    const auto* exit = node.last<agent_action::Exit>();
    const auto* connect = node.last<agent_action::Connect>();
    REQUIRE(node.last<agent_action::CloseLink>() != nullptr);
    if (!has_others) {
      REQUIRE(exit != nullptr);
      CHECK(exit->verdict.reason ==
            "the rendezvous at head:29500 took the connection but did not answer within 30000 ms");
      continue;
    }
    CHECK(exit == nullptr);
    REQUIRE(connect != nullptr);
    CHECK(connect->timeout == 10s);  // the rest of the first 40 s
  }
}

TEST_CASE("AgentMachine: a rendezvous that ends every connection is given up at the deadline") {
  AgentNode node;
  node.run();
  for (int i = 0; i < 100 && node.last<agent_action::Exit>() == nullptr; ++i) {
    node(agent_event::LinkDown{false, "closed"});
    node.now += 1s;
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node(agent_event::WorkersGone{1});
  }
  CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason, Contains("ends every connection"));
}

TEST_CASE("AgentMachine: a rendezvous that never takes a message is given up") {
  AgentNode node;
  node.run();
  node(agent_event::WorkersRunning{1});
  const auto comes_back = [&](std::uint64_t taken) {
    node(agent_event::LinkDown{false, "closed"});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    Welcome welcome;
    welcome.session = "s";
    node(agent_event::LinkMessage{{0, taken, welcome}});
  };
  for (int i = 0; i < 3; ++i) comes_back(0);
  comes_back(1);  // the rendezvous has taken the message after all
  node(agent_event::FirstStepDone{{1, 7}});
  for (int i = 0; i < 3; ++i) comes_back(1);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  comes_back(1);
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  node(agent_event::WorkersGone{1});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
  CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason,
             Contains("ended 3 connections in a row without taking message 2"));
}

TEST_CASE("AgentMachine: a stall while the link is down is said once, when it is back") {
  AgentNode node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  RankReport report;
  report.global_rank = 3;
  node(agent_event::RankStalled{1, report});
  node(agent_event::RankStalled{2, {}});        // a report of another round
  node(agent_event::RanksInspected{1, 1, {}});  // nobody waits for this answer any more
  CHECK(node.said<Stalled>() == nullptr);
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.welcome();
  REQUIRE(node.said<Stalled>() != nullptr);
  CHECK(node.said<Stalled>()->report.global_rank == 3);
  CHECK(node.said<Inspection>() == nullptr);
  node.actions.clear();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.welcome();
  CHECK(node.said<Stalled>() == nullptr);
}

}  // namespace
}  // namespace ddprun::membership
