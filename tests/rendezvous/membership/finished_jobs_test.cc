// SPDX-License-Identifier: Apache-2.0
// The memory of a job that is over: its content, how long it lasts, and its rows in the journal.
#include "rendezvous/membership/finished_jobs.h"

#include "common/text.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership::testing {
namespace {

using ddprun::test::Contains;

MachineOptions keeping(std::chrono::milliseconds time = 1h) {
  MachineOptions options = journalled();
  options.keep_finished = time;
  return options;
}

// Both nodes succeed in `round` and confirm the end.
void succeed(Script& j, std::uint64_t round) {
  for (const char* name : {"a", "b"}) j.says(name, WorkersSucceeded{round});
  for (const char* name : {"a", "b"}) j.acks(name);
}

TEST_CASE("FinishedJobs: a job's course and end are told once its agents have confirmed the end") {
  Script j(2, 1, keeping());
  const Clock::time_point began = j.now;
  for (const char* name : {"a", "b"}) j.join(name);
  j.wait(100ms);
  j.fails("a", 1, 7);
  for (const char* name : {"a", "b"}) j.says(name, WorkersStopped{1, 1});
  REQUIRE(j.round("b") == 2);
  j.wait(100ms);
  const Clock::time_point ended = j.now;
  j.fails("b", 2, 9);
  for (const char* name : {"a", "b"}) j.says(name, WorkersStopped{2, 1});
  REQUIRE(j.last<JobEnd>("a") != nullptr);
  CHECK(j.table.finished().size() == 0);  // status() still has the job
  j.wait(50ms);
  for (const char* name : {"a", "b"}) j.acks(name);
  CHECK(j.table.idle());
  CHECK(j.table.status().empty());
  REQUIRE(j.table.finished().size() == 1);
  const FinishedJob job = j.table.finished().all().front();
  CHECK(job.run_id == "job");
  CHECK(job.exit_code == 9);
  CHECK(job.reason == j.got<JobEnd>("a").reason);
  CHECK_THAT(job.first_failure, Contains("failed with exit code 9"));
  CHECK_THAT(job.summary, Contains("2 rounds"));
  CHECK(job.rounds == 2);
  CHECK(job.failures == 2);
  CHECK(job.node_losses == 0);
  CHECK(job.nodes == std::vector<std::string>{"a (10.0.0.a)", "b (10.0.0.b)"});
  CHECK(job.num_nodes == 2);
  CHECK(job.began == began);
  CHECK(job.ended == ended);
}

TEST_CASE("FinishedJobs: each is forgotten on time, by itself") {
  Script j(2, 0, keeping(1h));
  for (const char* name : {"a", "b"}) j.join(name);
  j.wait_alive(30s);
  const Clock::time_point ended = j.now;
  succeed(j, 1);
  REQUIRE(j.table.finished().size() == 1);
  CHECK(j.table.finished().all()[0].reason.empty());
  CHECK(j.table.next_deadline() == ended + 1h);
  j.wait(1h - 1ms);
  CHECK(j.table.finished().size() == 1);
  j.wait(1ms);
  CHECK(j.table.finished().size() == 0);
  CHECK(j.table.next_deadline() == std::nullopt);
}

TEST_CASE("FinishedJobs: nothing is kept and nothing is waited for with 0, as in an embedded one") {
  Script j(2, 0, keeping(0ms));
  for (const char* name : {"a", "b"}) j.join(name);
  succeed(j, 1);
  CHECK(j.table.finished().size() == 0);
  CHECK(j.table.next_deadline() == std::nullopt);
  j.keep();
  CHECK(j.rows.empty());
  CHECK(MachineOptions().keep_finished == 0ms);
}

TEST_CASE("FinishedJobs: a job of the same id is a new one, and both are told") {
  Script j(2, 0, keeping());
  for (int i = 0; i < 2; ++i) {
    j.agents.clear();
    for (const char* name : {"a", "b"}) {
      Join join = j.make_join(name);
      join.instance += std::to_string(i);
      j.join(name, join);
    }
    REQUIRE(j.table.status().size() == 1);
    CHECK(j.table.status()[0].round == 1);
    CHECK(j.table.finished().size() == static_cast<std::size_t>(i));
    succeed(j, 1);
    j.wait(1s);
  }
  const auto all = j.table.finished().all();
  REQUIRE(all.size() == 2);
  CHECK(all[0].run_id == all[1].run_id);
  CHECK(all[1].ended - all[0].ended == 1s);
}

TEST_CASE("FinishedJobs: a job that never began names who waited for it") {
  Script j(3, 0, keeping());
  for (const char* name : {"a", "b"}) j.join(name);
  for (int i = 0; i < 600 && j.last<JobEnd>("a") == nullptr; ++i) j.wait_alive(1s);
  REQUIRE(j.last<JobEnd>("a") != nullptr);
  for (const char* name : {"a", "b"}) j.acks(name);
  REQUIRE(j.table.finished().size() == 1);
  const FinishedJob job = j.table.finished().all().front();
  CHECK(job.rounds == 0);
  CHECK(job.exit_code == j.got<JobEnd>("a").exit_code);
  CHECK(job.nodes == std::vector<std::string>{"a (10.0.0.a)", "b (10.0.0.b)"});
}

TEST_CASE("FinishedJobs: one that nobody confirms is told, too, once it is given up") {
  Script j(2, 0, keeping());
  for (const char* name : {"a", "b"}) j.join(name);
  for (const char* name : {"a", "b"}) j.says(name, WorkersSucceeded{1});
  for (const char* name : {"a", "b"}) j.closes(name);
  CHECK(j.table.finished().size() == 0);
  j.wait(11s);
  CHECK(j.table.idle());
  CHECK(j.table.finished().size() == 1);
}

FinishedJob ended_at(Clock::time_point at) {
  FinishedJob job;
  job.run_id = concat("job ", at.time_since_epoch().count());
  job.ended = at;
  return job;
}

TEST_CASE("FinishedJobs: the one that ended first of more than a thousand goes, with its row") {
  FinishedJobs jobs(1h, true);
  const Clock::time_point start{1h};
  for (std::uint64_t i = 1; i <= FinishedJobs::kMost; ++i) jobs.add(i, ended_at(start + i * 1s));
  journal::Batch changes;
  jobs.take_changes(changes);
  CHECK(changes.size() == FinishedJobs::kMost);
  changes.clear();
  jobs.add(2000, ended_at(start + 500ms));  // it was confirmed last, and ended first
  CHECK(jobs.size() == FinishedJobs::kMost);
  CHECK(jobs.all().front().ended == start + 1s);
  jobs.add(2001, ended_at(start + 2000s));
  CHECK(jobs.size() == FinishedJobs::kMost);
  CHECK(jobs.all().front().ended == start + 2s);
  jobs.take_changes(changes);
  REQUIRE(changes.size() == 4);
  CHECK(changes[1].key == "finished/2000");
  CHECK_FALSE(changes[1].content);
  CHECK(changes[3].key == "finished/1");
  CHECK_FALSE(changes[3].content);
}

// A job of two nodes that took so long and ended well. The journal has all of it.
struct AfterAJob : Script {
  explicit AfterAJob(std::chrono::milliseconds duration = 0ms) : Script(2, 0, keeping()) {
    for (const char* name : {"a", "b"}) join(name);
    wait_alive(duration);
    succeed(*this, 1);
    keep();
  }
};

TEST_CASE("FinishedJobs: they are there after a restart, leave on time, and leave no row") {
  AfterAJob before(5s);
  REQUIRE(before.rows.size() == 1);
  CHECK(before.rows.begin()->first == "finished/1");
  before.wait(10min);
  const auto shift = GENERATE(Clock::duration::zero(), Clock::duration(-30min));
  const auto j = before.restarted(keeping(), shift);
  REQUIRE(j->table.finished().size() == 1);
  const FinishedJob job = j->table.finished().all().front();
  CHECK(job.run_id == "job");
  CHECK(job.num_nodes == 2);
  CHECK(j->now - job.ended == 10min);
  CHECK(job.ended - *job.began == 5s);
  j->keep();
  CHECK(j->rows.size() == 1);
  j->wait(50min - 1ms);
  CHECK(j->table.finished().size() == 1);
  j->wait(1ms);
  CHECK(j->table.finished().size() == 0);
  j->keep();
  CHECK(j->rows.empty());
}

TEST_CASE("FinishedJobs: a restart before the end is confirmed: told once, afterwards") {
  Script before(2, 0, keeping());
  for (const char* name : {"a", "b"}) before.join(name);
  const Clock::time_point began = before.now;
  before.wait_alive(5s);
  for (const char* name : {"a", "b"}) before.says(name, WorkersSucceeded{1});
  before.keep();
  CHECK_FALSE(before.rows.contains("finished/1"));
  const auto j = before.restarted(keeping());
  CHECK(j->table.finished().size() == 0);
  for (const char* name : {"a", "b"}) j->join(name);
  for (const char* name : {"a", "b"}) j->acks(name);
  REQUIRE(j->table.finished().size() == 1);
  const FinishedJob job = j->table.finished().all().front();
  CHECK(job.began == began);
  CHECK(job.ended == began + 5s);
  CHECK(job.nodes.size() == 2);
  j->keep();
  CHECK(j->rows.size() == 1);
}

TEST_CASE("FinishedJobs: no job gets the number of one that is told, also after a restart") {
  AfterAJob before;
  const auto j = before.restarted(keeping());
  j->agents.clear();
  for (const char* name : {"a", "b"}) {
    Join join = j->make_join(name);
    join.instance += "2";
    j->join(name, join);
  }
  succeed(*j, 1);
  j->keep();
  CHECK(j->table.finished().size() == 2);
  CHECK(j->rows.size() == 2);
  CHECK(j->rows.contains("finished/2"));
}

TEST_CASE("FinishedJobs: a restart with a shorter time, or none, keeps to it") {
  AfterAJob before;
  before.wait(1min);
  const auto time = GENERATE(0ms, 30'000ms);
  const auto j = before.restarted(keeping(time));
  CHECK(j->table.finished().size() == 0);
  CHECK(j->table.next_deadline() == std::nullopt);
  j->keep();
  CHECK(j->rows.empty());
}

TEST_CASE("FinishedJobs: rows that make no sense are named and erased, the others are kept") {
  AfterAJob before;
  before.rows["finished/2"] = "no JSON";
  before.rows["finished/x"] = before.rows["finished/1"];
  before.rows["finished/3"] = "{\"exit_code\":\"seven\"}";
  const auto j = before.restarted(keeping());
  CHECK(j->table.finished().size() == 1);
  REQUIRE(j->logs.size() == 3);
  CHECK_THAT(j->logs[0], Contains("finished/2"));
  CHECK_THAT(j->logs[1], Contains("\"exit_code\" is of another type"));
  CHECK_THAT(j->logs[2], Contains("finished/x") && Contains("it has no number"));
  j->keep();
  CHECK(j->rows.size() == 1);
}

}  // namespace
}  // namespace ddprun::membership::testing
