// SPDX-License-Identifier: Apache-2.0
// The cause of a round's end is the failure that happened first, in whatever order the news came.
#include "rendezvous/membership/state.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

// Node `name`'s worker died `ago` before now, by its clock to within 2 ms.
void failed_before(Script& j, const std::string& name, std::uint64_t round, int exit_code,
                   std::chrono::milliseconds ago) {
  WorkerFailed failed{round, {}};
  failed.failure.exit_code = exit_code;
  failed.failure.global_rank = std::stoi(name) - 1;
  failed.failure.died_at_us =
      std::chrono::duration_cast<std::chrono::microseconds>((j.now - ago).time_since_epoch())
          .count();
  failed.failure.clock_error_us = 2000;
  j.says(name, failed);
}

void start(Script& j, std::initializer_list<const char*> names) {
  for (const char* name : names) j.join(name);
  j.wait(2s);
  for (const char* name : names) j.says(name, WorkersRunning{1});
}

TEST_CASE("First failure: news of an earlier one, come before the workers are stopped, count") {
  Script j(2, 0);
  start(j, {"1", "2"});
  failed_before(j, "1", 1, 8, 5ms);
  j.wait(300ms);
  failed_before(j, "2", 1, 7, 400ms);
  j.says("1", WorkersStopped{1, 1});
  j.says("2", WorkersStopped{1, 1});
  for (const char* name : {"1", "2"}) {
    const auto* end = j.last<JobEnd>(name);
    REQUIRE(end != nullptr);
    CHECK(end->exit_code == 7);
    CHECK(end->first_failure->global_rank == 1);
    CHECK_THAT(end->reason, Contains("rank 1") && Contains("exit code 7"));
    REQUIRE(end->victims.size() == 1);
    CHECK_THAT(end->victims.front(),
               Contains("rank 0") && Contains("95.0 ms later") && Contains("± 4.0 ms"));
  }
  const RoundRecord record = j.table.status().front().rounds.back();
  CHECK_THAT(record.first_failure, Contains("rank 1"));
  CHECK(record.victims.size() == 1);
}

TEST_CASE("First failure: a node that was lost before is the cause, however late that is known") {
  Script j(1, 0);
  j.settings.max_nodes = 2;
  j.timeouts.last_call = 1s;
  start(j, {"1", "2"});
  REQUIRE(j.round("1") == 1);
  j.closes("2");
  j.wait(20ms);
  failed_before(j, "1", 1, 8, 10ms);  // its worker missed the other node's
  REQUIRE(j.last<StopRound>("1") != nullptr);
  j.says("1", WorkersStopped{1, 1});
  CHECK(j.last<JobEnd>("1") == nullptr);
  j.wait(2s);
  CHECK(j.round("1") == 2);
  const JobStatus status = j.table.status().front();
  CHECK(status.failures == 0);
  CHECK(status.node_losses == 1);
  CHECK_THAT(status.rounds.front().cause, Contains("was lost") && Contains("then rank 0"));
  CHECK(status.rounds.front().first_failure.empty());
}

TEST_CASE("First failure: a node that was lost before counts against its own budget") {
  Script j(1, 5);
  j.settings.max_nodes = 2;
  j.settings.max_node_losses = 0;
  start(j, {"1", "2"});
  j.closes("2");
  j.wait(20ms);
  failed_before(j, "1", 1, 8, 10ms);
  j.says("1", WorkersStopped{1, 1});
  j.wait(300ms);
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("was lost"));
}

TEST_CASE("First failure: a node that is lost after a failure is not its cause") {
  Script j(1, 0);
  j.settings.max_nodes = 2;
  start(j, {"1", "2"});
  failed_before(j, "1", 1, 8, 10ms);
  j.closes("2");
  j.says("1", WorkersStopped{1, 1});
  j.wait(300ms);
  CHECK(j.got<JobEnd>("1").exit_code == 8);
}

TEST_CASE("First failure: a later one is a victim, and so is one that doesn't know its time") {
  Script j(3, 0);
  start(j, {"1", "2", "3"});
  failed_before(j, "1", 1, 8, 50ms);
  failed_before(j, "2", 1, 7, 10ms);
  j.fails("3", 1, 6);
  for (const char* name : {"1", "2", "3"}) j.says(name, WorkersStopped{1, 1});
  CHECK(j.got<JobEnd>("2").exit_code == 8);
  CHECK(j.got<JobEnd>("2").victims.size() == 2);
}

TEST_CASE("First failure: a time that a node says is bounded by the round and by now") {
  Script j(2, 0);
  start(j, {"1", "2"});
  WorkerFailed liar{1, {}};
  liar.failure.exit_code = 8;
  liar.failure.died_at_us = std::int64_t{1} << 53;
  j.says("1", liar);
  j.wait(1ms);
  liar.failure.exit_code = 7;
  liar.failure.died_at_us = 1;
  j.says("2", liar);
  j.says("1", WorkersStopped{1, 1});
  j.says("2", WorkersStopped{1, 1});
  CHECK(j.got<JobEnd>("1").exit_code == 7);
  CHECK_THAT(j.got<JobEnd>("1").victims.front(), Contains("2000.0 ms later"));
}

TEST_CASE(
    "First failure: costs one restart, whichever it was, the exclusion meets the right node") {
  Script j(2, 10);
  j.settings.exclude_after = 1;
  j.settings.spares = 1;
  start(j, {"1", "2", "3"});
  failed_before(j, "1", 1, 8, 5ms);
  j.says("1", WorkersStopped{1, 1});  // the node would be excluded
  CHECK(j.last<JobEnd>("1") == nullptr);
  failed_before(j, "2", 1, 7, 400ms);
  j.says("2", WorkersStopped{1, 1});
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  CHECK(j.last<JobEnd>("1") == nullptr);
  CHECK(j.round("1") == 2);
  CHECK(j.round("3") == 2);
  CHECK(j.table.status().front().failures == 1);
  CHECK(j.table.status().front().excluded.count("2 (10.0.0.2)") == 1);
}

TEST_CASE("First failure: a spare beside a node that is blamed and cleared stays") {
  Script j(2, 10);
  j.settings.exclude_after = 1;
  j.settings.spares = 1;
  j.join_from("1", "1");
  j.join_from("2", "2");
  j.join_from("1", "1b");
  j.wait(1s);
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
  failed_before(j, "1", 1, 8, 5ms);
  failed_before(j, "2", 1, 7, 400ms);
  j.says("1", WorkersStopped{1, 1});
  j.says("2", WorkersStopped{1, 1});
  CHECK(j.last<JobEnd>("1b") == nullptr);
  CHECK(j.round("1b") == 2);
  CHECK(j.got<JobEnd>("2").exit_code == 75);
}

TEST_CASE("First failure: a round that ended for another reason has none") {
  Script j(2, 0);
  start(j, {"1", "2"});
  j.says("1", Leave{"received SIGTERM", 143});
  failed_before(j, "2", 1, 7, 400ms);
  CHECK(j.got<JobEnd>("1").exit_code == 143);
  CHECK_FALSE(j.got<JobEnd>("2").first_failure);
}

TEST_CASE("RoundFailures: the first ones of thousands are kept, and the number of the others") {
  RoundFailures failures;
  const Clock::time_point now{1h};
  failures.begin(now - 10s);
  Node node;
  for (int i = 1000; i > 0; --i) {
    WorkerFailure failure;
    failure.global_rank = i;
    failure.died_at_us =
        std::chrono::duration_cast<std::chrono::microseconds>((now - 5s).time_since_epoch())
            .count() +
        i;
    CHECK(failures.add(node, failure, now));
  }
  CHECK(failures.first().failure.global_rank == 1);
  REQUIRE(failures.victims().size() == RoundFailures::kMaxVictims + 1);
  CHECK_THAT(failures.victims().front(), Contains("rank 2 "));
  CHECK(failures.victims().back() == "and 991 more");
}

}  // namespace
}  // namespace ddprun::membership::testing
