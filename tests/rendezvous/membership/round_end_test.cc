// SPDX-License-Identifier: Apache-2.0
// The counts about rounds: the causes of their ends, the waits for them, and the costs of all jobs.
#include "rendezvous/membership/ledger.h"

#include <algorithm>

#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using testing::Script;
using Ends = std::deque<RoundEnd>;

// Round 1 runs on nodes "1" and "2".
struct Running : Script {
  explicit Running(int max_restarts = 3, const MachineOptions& options = {})
      : Script(2, max_restarts, options) {
    join("1");
    join("2");
    both(WorkersRunning{1});
  }
  void both(const AgentMessage& message) {
    says("1", message);
    says("2", message);
  }
  void both_stop(std::uint64_t round = 1) { both(WorkersStopped{round, 1001}); }
};

TEST_CASE("Round end: a failed worker's, once no worker is left, also when the job ends with it") {
  Running j(1);
  j.fails("1", 1, 3);
  CHECK(j.round_ends.empty());  // another node may turn out to have gone first
  j.both_stop();
  CHECK(j.round_ends == Ends{RoundEnd::kWorkerFailed});
  REQUIRE(j.round("1") == 2);
  j.fails("2", 2, 3);
  j.both_stop(2);
  CHECK(j.last<JobEnd>("1") != nullptr);
  CHECK(j.round_ends == Ends{RoundEnd::kWorkerFailed, RoundEnd::kWorkerFailed});
}

TEST_CASE("Round end: success, a node's loss, leaving or joining, requests, time-outs") {
  SECTION("success") {
    Running j;
    j.both(WorkersSucceeded{1});
    CHECK(j.round_ends == Ends{RoundEnd::kSuccess});
  }
  SECTION("loss") {
    Running j;
    j.closes("2");
    j.wait(200ms);
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.round_ends == Ends{RoundEnd::kNodeLost});
  }
  SECTION("leaving") {
    Running j;
    j.says("1", Leave{"received SIGTERM", 143});
    CHECK(j.round_ends == Ends{RoundEnd::kNodeLeft});
  }
  SECTION("joining") {
    Script j(1);
    j.settings.max_nodes = 2;
    j.settings.restart_on_join = true;
    j.timeouts.last_call = 0ms;
    j.join("1");
    j.says("1", WorkersRunning{1});
    j.join("2");
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.round_ends == Ends{RoundEnd::kNodeJoined});
  }
  SECTION("a request") {
    Running j;
    j.says("1", WorkerRequest{1, WorkerRequest::Kind::kStopJob, 0, "done", 0});
    j.both_stop();
    CHECK(j.round_ends == Ends{RoundEnd::kWorkerRequest});
  }
  SECTION("a time-out") {
    Running j;
    j.says("1", WorkersSucceeded{1});
    j.wait_alive(j.timeouts.exit_barrier);
    CHECK(j.round_ends == Ends{RoundEnd::kTimeout});
  }
}

TEST_CASE("Round end: it is the warning's if one is pending, whatever else came") {
  Running j;
  const auto kind = GENERATE(Preempted::Kind::kNode, Preempted::Kind::kTimeLimit);
  j.says("2", Preempted{kind, "got a signal", 60s});
  j.fails("1", 1, 3);
  j.both_stop();
  CHECK(j.round_ends ==
        Ends{kind == Preempted::Kind::kNode ? RoundEnd::kPreempted : RoundEnd::kTimeLimit});
}

TEST_CASE("Round end: a node that went before the first failure is the cause") {
  Running j(1);
  j.closes("2");
  j.wait(50ms);
  j.fails("1", 1, 8);
  j.wait(200ms);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round_ends == Ends{RoundEnd::kNodeLost});
}

TEST_CASE("Round end: a rendezvous that was restarted meanwhile knows it") {
  Running j(1, testing::journalled());
  j.fails("1", 1, 3);
  j.keep();
  const auto after = j.restarted();
  CHECK(after->starts.empty());
  for (const char* name : {"1", "2"}) {
    after->join(name);
    after->says(name, WorkersStopped{1, 1001});
  }
  CHECK(after->round_ends == Ends{RoundEnd::kWorkerFailed});
  REQUIRE(after->starts.size() == 1);
  CHECK(after->starts.front().rendezvous == 0);
}

TEST_CASE("Round end: it says how long the round's nodes were waited for") {
  Script j(2);
  j.join("1");
  j.wait_alive(3s);
  j.join("2");
  REQUIRE(j.starts.size() == 1);
  CHECK(j.starts.front().rendezvous == 3);
}

TEST_CASE(
    "Job seconds: the sum is over all jobs, those that are gone and the phase that lasts "
    "included") {
  Script j(2);
  j.join("1");
  j.wait_alive(3s);
  CHECK(j.table.seconds(j.now).rendezvous == 3);
  j.join("2");
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
  j.wait_alive(5s);
  CHECK(j.table.seconds(j.now).running == 5);
  for (const char* name : {"1", "2"}) j.says(name, WorkersSucceeded{1});
  for (const char* name : {"1", "2"}) j.acks(name);
  j.wait(60s);
  CHECK(j.table.idle());
  const PhaseSeconds all = j.table.seconds(j.now);
  CHECK(all.rendezvous == 3);
  CHECK(all.running == 5);
  CHECK(all.running + all.lost() == 8);
}

TEST_CASE("Job seconds: seconds that an earlier process has counted are not counted again") {
  Running j(1, testing::journalled());
  j.wait_alive(100s);
  j.keep();
  const auto after = j.restarted();
  CHECK(after->table.seconds(after->now).running == 0);
  for (const char* name : {"1", "2"}) after->join(name);
  after->wait_alive(2s);
  CHECK(after->table.seconds(after->now).running == 2);
}

// Things of a job can be cleaned up before one of its nodes begins the next job.
TEST_CASE("Job end: it is over here before a node hears of it") {
  Running j(1);
  j.says("1", WorkersSucceeded{1});
  auto& last = j.agents.at("2");
  const Actions actions = j.table.step(
      event::Message{last.connection, last.channel.number(WorkersSucceeded{1}), {}}, j.now);
  const auto over = std::ranges::find_if(actions, [](const Action& each) {
    return variants::holds_alternative<action::JobOver>(each);
  });
  REQUIRE(over != actions.end());
  const auto tells_end = [](const Action& each) {
    const auto* send = variants::get_if<action::Send>(&each);
    return send != nullptr && variants::holds_alternative<JobEnd>(send->envelope.message);
  };
  CHECK(std::none_of(actions.begin(), over, tells_end));
  CHECK(std::count_if(over, actions.end(), tells_end) == 2);
}

TEST_CASE("Job seconds: a job that never began a round has waited until its end") {
  Script j(2);
  j.timeouts.join = 30s;
  j.join("1");
  j.wait_alive(40s);
  REQUIRE(j.last<JobEnd>("1") != nullptr);
  CHECK(j.table.seconds(j.now).rendezvous == 30);
  CHECK(j.round_ends.empty());
}

}  // namespace
}  // namespace ddprun::membership
