// SPDX-License-Identifier: Apache-2.0
// Warnings about nodes that are about to be taken away, and about time limits.
#include <algorithm>
#include <csignal>

#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::Script;

constexpr auto kNode = Preempted::Kind::kNode;
constexpr auto kTimeLimit = Preempted::Kind::kTimeLimit;

// `num_nodes` named "1", "2", … run in round 1. The first `spares` of the other nodes wait.
struct PreemptedJob : Script {
  explicit PreemptedJob(int num_nodes, int spares = 0) : Script(num_nodes) {
    settings.spares = spares;
    for (int i = 1; i <= num_nodes + spares; ++i) join(std::to_string(i));
    for (int i = 1; i <= num_nodes; ++i) says(std::to_string(i), WorkersRunning{1});
  }
  void all_leave(int num_nodes, std::uint64_t last_step) {
    for (int i = 1; i <= num_nodes; ++i) says(std::to_string(i), WorkersLeft{1});
    for (int i = 1; i <= num_nodes; ++i)
      says(std::to_string(i), WorkersStopped{1, 1001, last_step});
  }
};

TEST_CASE("Preemption: every node is asked to leave, and the job goes on without the warned one") {
  PreemptedJob j(2, 1);
  j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<Preempt>(name).round == 1);
    CHECK(j.got<Preempt>(name).notice == 60s);
    CHECK_THAT(j.got<Preempt>(name).reason, Contains("node 1 (2, 10.0.0.2) got SIGUSR1"));
  }
  CHECK(j.last<Preempt>("3") == nullptr);
  CHECK_THAT(j.table.status().front().preempting, Contains("got SIGUSR1"));
  j.says("2", Preempted{kNode, "got SIGUSR1", 1s});  // a second warning changes nothing
  CHECK(j.got<Preempt>("1").notice == 60s);
  j.says("1", WorkersLeft{1});
  CHECK(j.last<StopRound>("1") == nullptr);
  j.says("2", WorkersLeft{1});
  CHECK(j.last<StopRound>("1") != nullptr);
  j.says("1", WorkersStopped{1, 1001, 41});
  j.says("2", WorkersStopped{1, 1001, 41});
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("2").reason, Contains("goes on without it"));
  CHECK(j.round("3") == 2);
  const JobStatus status = j.table.status().front();
  CHECK(status.preemptions == 1);
  CHECK(status.failures == 0);
  CHECK(status.node_losses == 0);
  CHECK(status.preempting.empty());
  CHECK(status.excluded.empty());  // the node may come again

  j.agents["2"] = {};
  Join again = j.make_join("2");
  again.instance = "another";
  j.join("2", again);
  CHECK(j.last<Refused>("2") == nullptr);
}

TEST_CASE("Preemption: the job ends with 75 and the step if not enough nodes are left") {
  PreemptedJob j(2);
  j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
  j.all_leave(2, 41);
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<JobEnd>(name).exit_code == 75);
    CHECK_THAT(j.got<JobEnd>(name).reason,
               Contains("preempted at step 41: node 1") && Contains("1 of 2 nodes are left"));
  }
}

TEST_CASE("Preemption: every node is told which signal it was") {
  PreemptedJob j(2, 1);
  j.says("2", Preempted{kNode, "got SIGUSR2", 60s, SIGUSR2});
  for (const char* name : {"1", "2"}) CHECK(j.got<Preempt>(name).signal_number == SIGUSR2);
}

TEST_CASE("Preemption: workers that don't leave are stopped when the notice is over") {
  PreemptedJob j(2, 1);
  j.says("2", Preempted{kNode, "got SIGUSR1", 3s});
  j.wait_alive(2s);
  CHECK(j.last<StopRound>("1") == nullptr);
  j.says("1", WorkersLeft{1});
  j.wait_alive(1s);
  CHECK_THAT(j.got<StopRound>("1").reason, Contains("notice is over"));
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.round("3") == 2);
}

TEST_CASE("Preemption: the time limit ends the job with 124, however it is reached") {
  PreemptedJob j(2, 1);
  SECTION("while workers run") {
    j.says("1", Preempted{kTimeLimit, "reaches the time limit of 60 s", 10s});
    CHECK(j.last<Preempt>("2") != nullptr);
    SECTION("they leave") {}
    SECTION("another node is warned, too") { j.says("2", Preempted{kNode, "got SIGUSR1", 60s}); }
    j.all_leave(2, 7);
    CHECK_THAT(j.got<JobEnd>("3").reason,
               Contains("reaches the time limit of 60 s") && Contains("at step 7"));
  }
  SECTION("while nodes are waited for") {
    PreemptedJob waiting(0);
    waiting.settings.min_nodes = waiting.settings.max_nodes = 2;
    waiting.join("1");
    waiting.says("1", Preempted{kTimeLimit, "reaches the time limit of 60 s", 10s});
    CHECK(waiting.got<JobEnd>("1").reason == "1 (10.0.0.1) reaches the time limit of 60 s");
    CHECK(waiting.got<JobEnd>("1").exit_code == 124);
    return;
  }
  SECTION("while they are being stopped") {
    j.fails("1", 1, 3);  // the budget is used up
    j.says("2", Preempted{kTimeLimit, "reaches the time limit of 60 s", 10s});
    j.says("1", WorkersStopped{1, 1001});
    j.says("2", WorkersStopped{1, 1001});
    CHECK(j.got<JobEnd>("1").exit_code == 3);
    return;
  }
  CHECK(j.got<JobEnd>("1").exit_code == 124);
}

TEST_CASE("Preemption: the shortest notice of several warnings counts") {
  PreemptedJob j(3, 2);
  j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
  j.says("3", Preempted{kNode, "got SIGUSR1", 2s});
  CHECK(j.got<Preempt>("1").notice == 2s);
  j.wait_alive(2s);
  CHECK(j.last<StopRound>("1") != nullptr);
  for (const char* name : {"1", "2", "3"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.last<JobEnd>("2") != nullptr);
  CHECK(j.last<JobEnd>("3") != nullptr);
  CHECK(j.round("5") == 2);
}

TEST_CASE("Preemption: warnings of all nodes at once cost one message to each") {
  PreemptedJob j(4);
  for (const char* name : {"3", "1", "4", "2"}) {
    j.says(name, Preempted{kTimeLimit, "--time-limit", 60s});
  }
  for (const char* name : {"1", "2", "3", "4"}) {
    const auto& received = j.agents[name].received;
    CHECK(std::count_if(received.begin(), received.end(), [](const RendezvousMessage& each) {
            return variants::holds_alternative<Preempt>(each);
          }) == 1);
  }
}

TEST_CASE("Preemption: it has a budget of its own") {
  Script j(1, 0);
  j.settings.max_preemptions = 1;
  j.settings.spares = 2;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.says("1", Preempted{kNode, "got SIGUSR1", 60s});
  j.says("1", WorkersLeft{1});
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("2") == 2);
  j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
  j.says("2", WorkersLeft{2});
  j.says("2", WorkersStopped{2, 1001});
  CHECK(j.got<JobEnd>("3").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("3").reason, Contains("--max-preemptions is 1"));
}

TEST_CASE("Preemption: a job whose workers all succeed meanwhile has succeeded") {
  PreemptedJob j(2);
  j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
  j.says("1", WorkersSucceeded{1});
  j.says("2", WorkersSucceeded{1});
  CHECK(j.got<JobEnd>("1").exit_code == 0);
}

TEST_CASE("Preemption: a failure meanwhile is one, and the warned node goes all the same") {
  PreemptedJob j(2, 1);
  SECTION("with restarts left") {
    Script k(2, 1);
    k.settings.spares = 1;
    for (const char* name : {"1", "2", "3"}) k.join(name);
    k.says("2", Preempted{kNode, "got SIGUSR1", 60s});
    k.fails("1", 1, 3);
    k.says("1", WorkersStopped{1, 1001});
    k.says("2", WorkersStopped{1, 1001});
    CHECK(k.round("3") == 2);
    CHECK(k.got<JobEnd>("2").exit_code == 75);
    CHECK(k.table.status().front().failures == 1);
  }
  SECTION("without") {
    j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
    j.fails("1", 1, 3);
    j.says("1", WorkersStopped{1, 1001});
    j.says("2", WorkersStopped{1, 1001});
    CHECK(j.got<JobEnd>("1").exit_code == 3);
  }
}

TEST_CASE("Preemption: workers that leave unasked have failed") {
  PreemptedJob j(2);
  j.says("1", WorkersLeft{1});
  REQUIRE(j.last<StopRound>("2") != nullptr);
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("failed with exit code 75"));
}

TEST_CASE("Preemption: an earlier failure that is heard of later leaves the time limit as it is") {
  Script j(2, 5);
  j.join("1");
  j.join("2");
  j.says("1", Preempted{kTimeLimit, "reaches the time limit of 60 s", 10s});
  j.wait(1s);
  const auto fails_at = [&](const char* name, Clock::time_point at) {
    WorkerFailed failed{1, {}};
    failed.failure.exit_code = 3;
    failed.failure.died_at_us =
        std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
    failed.failure.clock_error_us = 1;
    j.says(name, failed);
  };
  fails_at("1", j.now - 5ms);
  fails_at("2", j.now - 500ms);
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 124);
}

TEST_CASE("Preemption: a spare that is warned goes, and so does a node before the first round") {
  PreemptedJob j(1, 1);
  j.says("2", Preempted{kNode, "got SIGTERM", 60s});
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  CHECK(j.last<Preempt>("1") == nullptr);
  Script waiting(2);
  waiting.join("1");
  waiting.says("1", Preempted{kNode, "got SIGTERM", 60s});
  CHECK(waiting.got<JobEnd>("1").exit_code == 75);
  Script limit(2);
  limit.join("1");
  limit.says("1", Preempted{kTimeLimit, "reaches the time limit of 9 s", 9s});
  CHECK(limit.got<JobEnd>("1").exit_code == 124);
}

TEST_CASE("Preemption: a node that is warned between two rounds goes at once") {
  Script j(1, 5);
  j.timeouts.max_restart_delay = 100s;
  j.join("1");
  j.fails("1", 1, 3);
  j.says("1", WorkersStopped{1, 1001});
  j.fails("1", 2, 3);
  j.says("1", Preempted{kNode, "got SIGTERM", 60s});  // the node's workers are being stopped
  j.join("2");
  j.says("1", WorkersStopped{2, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  j.wait_alive(1s);
  CHECK(j.round("2") == 3);
}

TEST_CASE("Preemption: a notice for the only node ends the job") {
  MachineOptions options;
  options.embedded = true;
  Script j(1, 0, options);
  j.join("local");
  j.says("local", Preempted{kNode, "got SIGUSR1", 60s});
  j.says("local", WorkersLeft{1});
  j.says("local", WorkersStopped{1, 1001, 26});
  CHECK(j.got<JobEnd>("local").reason ==
        "preempted at step 26: node 0 (local, 127.0.0.1) got SIGUSR1; it is the job's only node");
}

TEST_CASE("Preemption: the node that embeds the rendezvous takes the job with it") {
  MachineOptions options;
  options.embedded = true;
  Script j(1, 0, options);
  j.settings.max_nodes = 2;
  j.join("local");
  j.join("2");
  REQUIRE(j.round("2") == 1);
  j.says("local", Preempted{kNode, "got SIGUSR1", 60s});
  j.says("local", WorkersLeft{1});
  j.says("2", WorkersLeft{1});
  j.says("local", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("2").reason, Contains("serves the rendezvous"));
}

TEST_CASE("Preemption: another node of the machine that has the rendezvous goes alone") {
  MachineOptions options;
  options.embedded = true;
  options.embedding_pid = 4711;
  Script j(1, 0, options);
  j.settings.max_nodes = 2;
  Join join = j.make_join("local");
  join.pid = options.embedding_pid;
  j.join("local", join);
  j.join("local2");
  REQUIRE(j.round("local2") == 1);
  j.says("local2", Preempted{kNode, "got SIGUSR1", 60s});
  for (const char* name : {"local", "local2"}) j.says(name, WorkersLeft{1});
  for (const char* name : {"local", "local2"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.last<JobEnd>("local") == nullptr);
  j.wait_alive(1s);
  CHECK(j.round("local") == 2);
}

TEST_CASE("Preemption: the job ends between two rounds if too few nodes are left") {
  Script j(2, 5);
  j.timeouts.max_restart_delay = 100s;
  for (const char* name : {"1", "2"}) j.join(name);
  for (const std::uint64_t round : {1, 2}) {
    j.fails("1", round, 3);
    for (const char* name : {"1", "2"}) j.says(name, WorkersStopped{round, 1001});
  }
  j.says("2", Preempted{kNode, "got SIGTERM", 60s});
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("preempted: node 1") && Contains("1 of 2"));
}

TEST_CASE("Preemption: a warned node that is lost before it left is a lost node") {
  PreemptedJob j(2, 1);
  j.says("2", Preempted{kNode, "got SIGUSR1", 60s});
  j.closes("2");
  j.wait(200ms);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("3") == 2);
  CHECK(j.table.status().front().node_losses == 1);
}

}  // namespace
}  // namespace ddprun::membership
