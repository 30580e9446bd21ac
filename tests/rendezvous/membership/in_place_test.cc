// SPDX-License-Identifier: Apache-2.0
// Rounds that go on in place: the rendezvous' decisions, and the agent's actions.
#include "rendezvous/membership/verdicts.h"

#include <csignal>

#include "tests/agent/link/agent_node.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::Script;

Join two_workers(const Script& j, const std::string& name) {
  Join join = j.make_join(name);
  join.num_workers = 2;
  return join;
}

// Two running nodes of two workers each.
void run(Script& j) {
  j.settings.recovery = Recovery::kInPlace;
  for (const char* name : {"1", "2"}) j.join(name, two_workers(j, name));
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
}

WorkersStopped kept(std::uint64_t round, int count, std::uint16_t port = 1001) {
  return {round, port, 7, 0, count};
}

TEST_CASE("In place: the workers are the next round when all nodes have kept theirs") {
  Script j(2, 3);
  run(j);
  j.fails("2", 1, 0, SIGKILL);
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<StopRound>(name).keep == kKeepTime);
  }
  j.says("1", kept(1, 2));
  CHECK(j.round("1") == 1);
  j.says("2", kept(1, 1, 1002));
  const StartRound* first = j.last<StartRound>("1");
  const StartRound* second = j.last<StartRound>("2");
  CHECK(first->in_place);
  CHECK((first->round == 2 && first->restart_count == 1));
  CHECK((first->world_size == 3 && second->world_size == 3));
  CHECK((first->first_global_rank == 0 && second->first_global_rank == 2));
  CHECK((first->node_rank == 0 && first->master_port == 1001 && first->serve_store));
  const JobStatus status = j.table.status().front();
  CHECK((status.failures == 1 && status.rounds.back().in_place));
  CHECK(status.rounds.back().world_size == 3);
  CHECK_THAT(status.rounds.front().cause, Contains("restart 1 of 3 in place"));
}

TEST_CASE("In place: a round that has gone on can go on again, or restart with all workers") {
  Script j(2, 3);
  run(j);
  j.fails("2", 1, 0, SIGKILL);
  j.says("1", kept(1, 2));
  j.says("2", kept(1, 1));
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{2});
  j.fails("1", 2, 0, SIGKILL);
  CHECK(j.got<StopRound>("1").keep == kKeepTime);
  const bool again = GENERATE(true, false);
  if (again) {
    j.says("1", kept(2, 1));
    j.says("2", kept(2, 1));
    CHECK(j.got<StartRound>("2").world_size == 2);
    CHECK(j.got<StartRound>("2").in_place);
  } else {
    j.says("1", WorkersStopped{2, 1003});
    j.says("2", WorkersStopped{2, 1003});
    CHECK(j.got<StartRound>("2").world_size == 4);
    CHECK_FALSE(j.got<StartRound>("2").in_place);
  }
}

TEST_CASE("In place: a node without workers to go on with makes all stop, and the job restarts") {
  Script j(2, 3);
  run(j);
  j.fails("2", 1, 0, SIGKILL);
  j.says("1", kept(1, 2));
  j.says("2", WorkersStopped{1, 1002});
  CHECK(j.got<StopRound>("1").keep == 0ms);
  CHECK_THAT(j.got<StopRound>("1").reason, Contains("can't go on in place"));
  CHECK(j.round("1") == 1);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("1") == 2);
  CHECK_FALSE(j.got<StartRound>("1").in_place);
  CHECK(j.got<StartRound>("1").world_size == 4);
}

TEST_CASE("In place: a node that is lost while others have kept their workers ends that") {
  Script j(2, 3);
  j.settings.spares = 1;
  run(j);
  j.join("3", two_workers(j, "3"));
  j.fails("2", 1, 0, SIGKILL);
  j.says("1", kept(1, 2));
  j.closes("2");
  j.wait(200ms);
  CHECK(j.got<StopRound>("1").keep == 0ms);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("1") == 2);
  CHECK_FALSE(j.got<StartRound>("1").in_place);
}

TEST_CASE("In place: a node that says nothing is waited for as long as for one that stops") {
  Script j(2, 3);
  run(j);
  j.fails("2", 1, 0, SIGKILL);
  j.says("1", kept(1, 2));
  j.wait_alive(kKeepTime + j.timeouts.shutdown);
  CHECK(j.last<JobEnd>("1") == nullptr);
  j.wait_alive(kNodeStoppedMargin + 1s);
  CHECK(j.got<JobEnd>("1").exit_code == 75);
}

TEST_CASE("In place: anything but a plain death of a worker in a running round restarts the job") {
  Script j(2, 3);
  j.settings.recovery = Recovery::kInPlace;
  SECTION("a node still starts") {
    for (const char* name : {"1", "2"}) j.join(name, two_workers(j, name));
    j.says("1", WorkersRunning{1});
  }
  SECTION("a node has finished") {
    run(j);
    j.says("1", WorkersSucceeded{1});
  }
  SECTION("a node is about to be taken away") {
    run(j);
    j.says("1", Preempted{Preempted::Kind::kNode, "got SIGUSR1", 60s});
  }
  SECTION("the store is at the rendezvous") {
    j.settings.store = StoreMode::kProxy;
    run(j);
  }
  SECTION("the budget is used up") {
    j.settings.max_restarts = 0;
    run(j);
  }
  j.fails("2", 1, 0, SIGKILL);
  CHECK(j.got<StopRound>("2").keep == 0ms);
  j.says("1", kept(1, 2));  // this agent errs
  j.says("2", kept(1, 1));
  CHECK(j.round("1") == 1);
}

TEST_CASE("In place: nodes that differ in --recovery are told so") {
  Script j(2, 3);
  j.settings.recovery = Recovery::kInPlace;
  j.join("1");
  j.settings.recovery = Recovery::kRestart;
  j.join("2");
  CHECK_THAT(j.got<Refused>("2").message, Contains("--recovery is restart here, but inplace on"));
}

TEST_CASE("In place: a rendezvous that was restarted goes on where it was") {
  auto before = std::make_unique<Script>(2, 3, testing::journalled());
  run(*before);
  before->fails("2", 1, 0, SIGKILL);
  before->says("1", kept(1, 2));
  before->keep();
  auto after = before->restarted();
  for (const char* name : {"1", "2"}) after->join(name, two_workers(*after, name));
  after->says("2", kept(1, 1));
  REQUIRE(after->last<StartRound>("1") != nullptr);
  CHECK(after->last<StartRound>("1")->in_place);
  CHECK(after->last<StartRound>("1")->world_size == 3);
}

// ---- the agent ----

StartRound in_place(std::uint64_t round) {
  StartRound start;
  start.round = round;
  start.in_place = true;
  start.serve_store = true;
  return start;
}

// Goes up to workers that are to be kept.
void keep(AgentNode& node) {
  node.run();
  node(agent_event::WorkersRunning{1});
  node.actions.clear();
  node.hear(StopRound{1, "why", kKeepTime});
}

TEST_CASE("AgentMachine: kept workers are said, and go on in the next round") {
  AgentNode node;
  keep(node);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  REQUIRE(node.last<agent_action::KeepWorkers>() != nullptr);
  REQUIRE(node.last<agent_action::RoundOver>() != nullptr);
  CHECK(node.last<agent_action::RoundOver>()->cause == "why");
  CHECK(node.last<agent_action::RoundOver>()->in_place);
  node(agent_event::WorkersKept{1, 3, 42});
  const WorkersStopped* said = node.said<WorkersStopped>();
  REQUIRE(said != nullptr);
  CHECK((said->round == 1 && said->kept == 3 && said->last_step == 42 && said->store_port == 4001));
  node.hear(in_place(2));
  CHECK(node.last<agent_action::CloseStore>()->round == 1);
  CHECK(node.last<agent_action::ServeStore>()->round == 2);
  CHECK(node.last<agent_action::Spawn>() == nullptr);
  REQUIRE(node.last<agent_action::GoOn>() != nullptr);
  CHECK(node.last<agent_action::GoOn>()->round.round == 2);
  node(agent_event::WorkersRunning{2});
  CHECK(node.said<WorkersRunning>()->round == 2);
}

TEST_CASE("AgentMachine: workers that can't go on, or don't ask in time, are stopped") {
  AgentNode node;
  keep(node);
  if (GENERATE(true, false)) {
    node(agent_event::WorkersNotKept{1, "one has not offered it"});
  } else {
    node.pass(kKeepTime - 1ms);
    CHECK(node.last<agent_action::StopWorkers>() == nullptr);
    node.pass(1ms);
  }
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK_FALSE(node.last<agent_action::RoundOver>()->in_place);
  node(agent_event::WorkersKept{1, 3, 42});  // this event comes late
  node(agent_event::WorkersGone{1, 42});
  CHECK(node.said<WorkersStopped>()->kept == 0);
}

TEST_CASE("AgentMachine: kept workers are stopped when others can't go on") {
  AgentNode node;
  keep(node);
  const bool has_said = GENERATE(true, false);
  if (has_said) node(agent_event::WorkersKept{1, 3, 42});
  node.hear(StopRound{1, "others can't"});
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  node(agent_event::WorkersGone{1, 42});
  CHECK(node.said<WorkersStopped>()->kept == 0);
  CHECK(node.said<WorkersStopped>()->store_port == 4001);
}

TEST_CASE("AgentMachine: a round that was to go on without its workers is declined") {
  AgentNode node;
  keep(node);
  node(agent_event::WorkersKept{1, 3, 42});
  node(agent_event::WorkersFenced{1});
  const bool gone_before = GENERATE(true, false);
  if (gone_before) node(agent_event::WorkersGone{1, 42});
  node.actions.clear();
  node.hear(in_place(2));
  if (!gone_before) node(agent_event::WorkersGone{1, 42});
  CHECK(node.last<agent_action::GoOn>() == nullptr);
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK((node.said<WorkersStopped>()->round == 2 && node.said<WorkersStopped>()->kept == 0));
}

}  // namespace
}  // namespace ddprun::membership
