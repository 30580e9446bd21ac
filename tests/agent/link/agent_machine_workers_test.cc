// SPDX-License-Identifier: Apache-2.0
// The workers of a round, and what is said of them.
#include <csignal>

#include "tests/agent/link/agent_node.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;

TEST_CASE("AgentMachine: a spare starts its workers ahead, once for each round it may get") {
  AgentNode node;
  node.options.prewarm = GENERATE(true, false);
  node.begin();
  node.join();
  node.hear(Waiting{1, 2, "", false}, false);
  CHECK(node.last<agent_action::Prewarm>() == nullptr);
  node.hear(Waiting{0, 0, "ready as spare", true}, false);
  CHECK((node.last<agent_action::Prewarm>() != nullptr) == node.options.prewarm);
  node.actions.clear();
  node.hear(Waiting{0, 0, "ready as spare, again", true}, false);
  CHECK(node.last<agent_action::Prewarm>() == nullptr);
  node.start(3);
  REQUIRE(node.last<agent_action::Spawn>() != nullptr);
  node.hear(Waiting{0, 0, "late", true}, false);  // the node's workers live
  CHECK(node.last<agent_action::Prewarm>() == nullptr);
}

TEST_CASE("AgentMachine: a failed worker is told once, workers run on until StopRound") {
  AgentNode node;
  node.run();
  agent_event::WorkerFailed failed{1, {}};
  failed.failure.exit_code = 3;
  node(failed);
  REQUIRE(node.said<WorkerFailed>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  node.actions.clear();
  node(failed);
  CHECK(node.said<WorkerFailed>() == nullptr);
  node.hear(StopRound{1, "why"});
  CHECK(node.last<agent_action::StopWorkers>()->grace == 30s);
  REQUIRE(node.last<agent_action::RoundOver>() != nullptr);
  CHECK(node.last<agent_action::RoundOver>()->cause == "why");
  CHECK_FALSE(node.last<agent_action::RoundOver>()->in_place);
  node(agent_event::WorkersGone{1});
  // Other nodes' workers may not be gone yet.
  CHECK(node.last<agent_action::CloseStore>() == nullptr);
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->store_port == 4001);
  node.start(2);
  CHECK(node.last<agent_action::CloseStore>()->round == 1);
  CHECK(node.last<agent_action::Spawn>()->round.round == 2);
}

TEST_CASE("AgentMachine: a listener that the next round would want ends no job that is over") {
  AgentNode node;
  node.run();
  node.hear(StopRound{1, "why"});
  node.no_port = "no port is free";
  node(agent_event::WorkersGone{1});
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->store_port == 0);
  CHECK(node.said<Leave>() == nullptr);
  SECTION("the job's own verdict counts") {
    JobEnd end;
    end.exit_code = 13;
    node.hear(end);
    CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 13);
  }
  SECTION("a next round begins") {
    node.start(2);
    REQUIRE(node.said<Leave>() != nullptr);
    CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 2);
    CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason,
               Contains("can't serve the round's store: no port is free"));
  }
}

TEST_CASE("AgentMachine: a round with which the job ends is no restart") {
  AgentNode node;
  node.run();
  node.hear(StopRound{1, "why", {}, true});
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK(node.last<agent_action::RoundOver>() == nullptr);
}

TEST_CASE("AgentMachine: events of an old round change nothing") {
  AgentNode node;
  node.run();
  node.hear(StopRound{1, "why"});
  node(agent_event::WorkersGone{1});
  node.start(2);
  REQUIRE(node.last<agent_action::Spawn>()->round.round == 2);
  node.actions.clear();
  node(agent_event::WorkersRunning{1});
  node(agent_event::WorkerFailed{1, {}});
  node(agent_event::WorkersSucceeded{1});
  node(agent_event::WorkersLeft{1});
  node(agent_event::WorkersFenced{1});
  node(agent_event::RanksInspected{1, 4, {}});
  node(agent_event::WorkersGone{1});
  node.hear(StopRound{1, "why"});
  CHECK(node.actions.empty());
  // These events leave the machine's state alone, too: the workers of round 2 live, and none of
  // them has failed.
  node(agent_event::WorkerFailed{2, {}});
  CHECK(node.said<WorkerFailed>() != nullptr);
  node.hear(StopRound{2, "why"});
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
}

TEST_CASE("AgentMachine: static mode gives the workers the endpoint as typed") {
  AgentNode node("static");
  node(agent_event::Start{});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  CHECK(node.bound.empty());
  REQUIRE(node.said<Join>() != nullptr);
  node.welcome();
  StartRound start;
  start.round = 1;
  node.hear(start);
  CHECK(node.last<agent_action::Spawn>()->round.master_addr == "head");
  CHECK(node.last<agent_action::Spawn>()->round.master_port == 29500);
}

TEST_CASE("AgentMachine: inspects the ranks of its round when asked, and says what was found") {
  AgentNode node;
  node.run();
  node.hear(Inspect{7});
  CHECK(node.last<agent_action::Inspect>() == nullptr);
  node.hear(Inspect{1, 4});
  REQUIRE(node.last<agent_action::Inspect>() != nullptr);
  CHECK(node.last<agent_action::Inspect>()->round == 1);
  CHECK(node.last<agent_action::Inspect>()->inquiry == 4);
  RankReport report;
  report.global_rank = 3;
  node(agent_event::RanksInspected{1, 4, {report}});
  REQUIRE(node.said<Inspection>() != nullptr);
  CHECK(node.said<Inspection>()->ranks[0].global_rank == 3);
  CHECK(node.said<Inspection>()->inquiry == 4);
  node(agent_event::RankStalled{1, report});
  CHECK(node.said<Stalled>() != nullptr);
  node(agent_event::StepsTimed{1, {}});
  CHECK(node.said<StepTimes>() != nullptr);
  node.hear(HangVerdict{1, "hang: …", {"state S"}});
  CHECK(node.last<agent_action::Tell>()->text == "  state S");
}

TEST_CASE(
    "AgentMachine: a job that is stopped while it hangs ends with that hang, unless it went on") {
  AgentNode node;
  node.run();
  TrainingStatus training;
  node(agent_event::StepsTimed{1, {}, training});
  node.hear(HangVerdict{1, "hang: rank 1", {}});
  node.now += 10s;
  node.hear(HangVerdict{1, "still: hang: rank 1", {}});
  const bool went_on = GENERATE(true, false);
  training.step = went_on ? 1 : 0;
  node(agent_event::StepsTimed{1, {}, training});
  node.hear(JobEnd{130, "received SIGINT", {}, 1});
  node(agent_event::WorkersGone{1});
  const auto* const exit = node.last<agent_action::Exit>();
  REQUIRE(exit != nullptr);
  CHECK(exit->verdict.reason ==
        (went_on ? "received SIGINT" : "received SIGINT; 10 s before: hang: rank 1"));
}

TEST_CASE("AgentMachine: the ranks' records are asked for once a round, whoever wants them first") {
  AgentNode node;
  node.run();
  node(agent_event::RecordsWanted{7});
  node.hear(Record{7});
  CHECK(node.said<RecordsWanted>() == nullptr);
  CHECK(node.last<agent_action::Record>() == nullptr);
  const bool here_first = GENERATE(true, false);
  if (here_first) {
    node(agent_event::RecordsWanted{1});
    REQUIRE(node.said<RecordsWanted>() != nullptr);
    CHECK(node.said<RecordsWanted>()->round == 1);
  } else {
    node.hear(Record{1});
  }
  REQUIRE(node.last<agent_action::Record>() != nullptr);
  CHECK(node.last<agent_action::Record>()->round == 1);
  node.actions.clear();
  node(agent_event::RecordsWanted{1});
  node.hear(Record{1});
  CHECK(node.last<agent_action::Record>() == nullptr);
  CHECK(node.said<RecordsWanted>() == nullptr);

  node.hear(StopRound{1, "why"});
  CHECK(node.last<agent_action::StopWorkers>()->after_records);
  node(agent_event::Signal{SIGINT});
  node(agent_event::Signal{SIGINT});
  CHECK_FALSE(node.last<agent_action::StopWorkers>()->after_records);  // the workers stop at once
}

TEST_CASE("AgentMachine: killed workers that take long to die are waited for") {
  AgentNode node;
  node.run();
  node.hear(StopRound{1, "why"});
  node.now += node.options.join.timeouts.shutdown + kDeathLimit;
  node(agent_event::Timer{});
  CHECK(node.last<agent_action::Exit>() == nullptr);
  node(agent_event::WorkersGone{1});
  CHECK(node.said<WorkersStopped>() != nullptr);
}

TEST_CASE("AgentMachine: workers that don't die are given up before the rendezvous gives up") {
  AgentNode node;
  node.run();
  node.hear(StopRound{1, "why"});
  node.now += node.options.join.timeouts.shutdown + kNodeStoppedMargin - 1s;
  node(agent_event::Timer{});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
}

TEST_CASE("AgentMachine: records may be asked for anew in the next round") {
  AgentNode node;
  node.run();
  node.hear(Record{1});
  node.hear(StopRound{1, "why"});
  node(agent_event::WorkersGone{1});
  node.start(2);
  node.actions.clear();
  node(agent_event::RecordsWanted{2});
  CHECK(node.last<agent_action::Record>() != nullptr);
}

TEST_CASE("AgentMachine: a worker's request is handed on while its round lives") {
  AgentNode node;
  node.run();
  node(agent_event::WorkerAsks{7, WorkerRequest::Kind::kStopJob, 0, "another round's", 3});
  CHECK(node.said<WorkerRequest>() == nullptr);
  node(agent_event::WorkerAsks{1, WorkerRequest::Kind::kExcludeNode, 2, "hot", 1});
  REQUIRE(node.said<WorkerRequest>() != nullptr);
  CHECK(node.said<WorkerRequest>()->reason == "hot");
  node.actions.clear();
  node.hear(StopRound{1, "excluded"});
  node(agent_event::WorkerAsks{1, WorkerRequest::Kind::kExcludeNode, 3, "hot", 1});
  CHECK(node.said<WorkerRequest>() == nullptr);
}

TEST_CASE("AgentMachine: the first step is said, and the last one with the workers' end") {
  AgentNode node;
  node.run();
  node(agent_event::FirstStepDone{{7, 3}});
  CHECK(node.said<FirstStep>() == nullptr);
  node(agent_event::FirstStepDone{{1, 41}});
  REQUIRE(node.said<FirstStep>() != nullptr);
  CHECK(node.said<FirstStep>()->step == 41);
  node.hear(StopRound{1, "failed"});
  node(agent_event::WorkersGone{1, 99});
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->last_step == 99);
}

TEST_CASE("AgentMachine: a warning is said, workers that are asked to leave do so in order") {
  AgentNode node;
  node.run();
  node(agent_event::Warned{Preempted::Kind::kNode, "got SIGUSR1", 60s});
  REQUIRE(node.said<Preempted>() != nullptr);
  CHECK(node.said<Preempted>()->reason == "got SIGUSR1");
  node.hear(Preempt{7, "another round's", 60s});
  CHECK(node.last<agent_action::RequestStop>() == nullptr);
  node.hear(Preempt{1, "node 1 got SIGUSR2", 60s, SIGUSR2});
  REQUIRE(node.last<agent_action::RequestStop>() != nullptr);
  CHECK(node.last<agent_action::RequestStop>()->notice == 60s);
  CHECK(node.last<agent_action::RequestStop>()->signal_number == SIGUSR2);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  node(agent_event::WorkersLeft{1});
  CHECK(node.said<WorkersLeft>() != nullptr);
  node.hear(StopRound{1, "all workers have left"});
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
}

}  // namespace
}  // namespace ddprun::membership
