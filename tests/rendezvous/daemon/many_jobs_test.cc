// SPDX-License-Identifier: Apache-2.0
// Hundreds of jobs at once on one Daemon, over real sockets. Each is told of itself alone, and a
// page of all of them keeps nobody waiting.
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/socket.h"
#include "common/text.h"
#include "rendezvous/daemon/daemon.h"
#include "tests/rendezvous/daemon/shelf.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_cpu.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using membership::Join;

constexpr int kNumJobs = test::kIsSanitized ? 60 : 300;
constexpr auto kPatience = 60s;  // enough for a sanitizer, on a loaded machine

// Room for both ends of two connections for each job, and for other open files of this process.
bool may_open_enough() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= 4 * kNumJobs + 200;
}

// The course of a job, which follows from its number.
enum class Fate { kSucceeds, kFails, kFailsOnce };

struct Job {
  std::string run_id;
  Fate fate = Fate::kSucceeds;
  int exit_code = 0;    // of the failing worker
  int num_workers = 0;  // of each of its two nodes
  std::unique_ptr<TestAgent> nodes[2];

  std::size_t num_rounds() const { return fate == Fate::kFailsOnce ? 2 : 1; }
  bool has_begun(std::size_t num) const {
    return nodes[0]->rounds.size() >= num && nodes[1]->rounds.size() >= num;
  }
};

std::vector<Job> plan_jobs() {
  std::vector<Job> jobs(kNumJobs);
  for (int i = 0; i < kNumJobs; ++i) {
    jobs[i].run_id = "job-" + std::to_string(i);
    jobs[i].fate = static_cast<Fate>(i % 3);
    jobs[i].exit_code = 3 + i % 60;
    jobs[i].num_workers = 1 + i % 8;
  }
  return jobs;
}

// The job's node `index`. All jobs' nodes are on the same two hosts.
Join join_of(const Job& job, int index) {
  Join join = make_join(index == 0 ? "a" : "b", 2, job.num_workers);
  join.run_id = job.run_id;
  join.instance = job.run_id + "/" + join.host;
  join.settings.max_restarts = job.fate == Fate::kFailsOnce ? 1 : 0;
  return join;
}

void check_rounds(const Job& job) {
  INFO(job.run_id);
  for (int index : {0, 1}) {
    const auto& rounds = job.nodes[index]->rounds;
    CHECK(rounds.size() == job.num_rounds());
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      CHECK(rounds[i].round == i + 1);
      CHECK(rounds[i].world_size == 2 * job.num_workers);
      CHECK(rounds[i].restart_count == static_cast<int>(i));
      // The node that came first is node rank 0, and stays it.
      CHECK(rounds[i].first_global_rank == rounds[i].node_rank * job.num_workers);
      CHECK(rounds[i].node_rank == rounds[0].node_rank);
    }
  }
  CHECK(job.nodes[0]->rounds[0].node_rank + job.nodes[1]->rounds[0].node_rank == 1);
}

void check_end(const Job& job) {
  INFO(job.run_id);
  for (const auto& node : job.nodes) {
    const auto& verdict = node->exit->verdict;
    CHECK(verdict.exit_code == (job.fate == Fate::kFails ? job.exit_code : 0));
    if (job.fate != Fate::kFails) continue;
    REQUIRE(verdict.first_failure);
    CHECK(verdict.first_failure->host == "b");
    CHECK(verdict.first_failure->exit_code == job.exit_code);
  }
}

TEST_CASE("Daemon: hundreds of jobs at once are each told of themselves alone") {
  if (!may_open_enough()) DDPRUN_SKIP("ulimit -Hn is too low for the connections of all jobs");
  set_log_level(LogLevel::kError);
  boost::asio::io_context io{1};
  DaemonOptions options;
  options.keep_finished = 1h;
  Daemon daemon(io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  std::vector<Job> jobs = plan_jobs();
  // First one node of each job waits, so no job is whole too early.
  for (const int index : {0, 1}) {
    for (Job& job : jobs) {
      job.nodes[index] = std::make_unique<TestAgent>(io, daemon.port(), join_of(job, index));
    }
    const auto has_heard = [&] {
      return std::all_of(jobs.begin(), jobs.end(), [&](const Job& job) {
        return index == 0 ? !job.nodes[0]->told.empty() : job.has_begun(1);
      });
    };
    REQUIRE(run_until(io, has_heard, kPatience));
  }
  // An agent may be told of the end before the job is counted as finished.
  const auto has_counted = [&](int num_live, int num_finished) {
    const std::string counts = "\"jobs\":{\"live\":" + std::to_string(num_live) +
                               ",\"finished\":" + std::to_string(num_finished) + ",";
    return run_until(
        io, [&] { return daemon.status_json().find(counts) != std::string::npos; }, kPatience);
  };
  CHECK(has_counted(kNumJobs, 0));

  for (Job& job : jobs) {
    if (job.fate != Fate::kSucceeds) job.nodes[1]->worker_fails(job.exit_code);
  }
  const auto are_restarted = [&] {
    return std::all_of(jobs.begin(), jobs.end(), [](const Job& job) {
      return job.fate == Fate::kFails ? job.nodes[0]->exit && job.nodes[1]->exit
                                      : job.has_begun(job.num_rounds());
    });
  };
  REQUIRE(run_until(io, are_restarted, kPatience));
  CHECK(has_counted(kNumJobs * 2 / 3, kNumJobs / 3));
  for (const Job& job : jobs) check_rounds(job);

  for (Job& job : jobs) {
    if (job.fate == Fate::kFails) continue;
    for (const auto& node : job.nodes) node->workers_succeed();
  }
  const auto are_over = [&] {
    return std::all_of(jobs.begin(), jobs.end(),
                       [](const Job& job) { return job.nodes[0]->exit && job.nodes[1]->exit; });
  };
  REQUIRE(run_until(io, are_over, kPatience));
  for (const Job& job : jobs) check_end(job);
  CHECK(has_counted(0, kNumJobs));
}

// The rows of jobs that wait for their nodes to come back.
journal::Rows rows_of(int num_jobs) {
  membership::MachineOptions options;
  options.journalled = true;
  membership::JobTable table(options, [n = 0]() mutable { return std::to_string(++n); });
  for (int i = 1; i <= num_jobs; ++i) {
    Join join = make_join("a", 2);
    join.run_id = "job-" + std::to_string(i);
    join.instance = join.run_id;
    membership::event::Message message;
    message.connection = i;
    message.envelope.message = std::move(join);
    message.facts.peer_addr = "10.0.0.1";
    table.step(message, Clock::now());
  }
  journal::Rows rows;
  journal::apply_batch(table.take_changes(), rows);
  return rows;
}

TEST_CASE("Daemon: a page of thousands of jobs is made in turns") {
  set_log_level(LogLevel::kError);
  boost::asio::io_context io{1};
  DaemonOptions options;
  options.stands_by = true;
  Daemon daemon(io, bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  constexpr int kMany = 3'000;
  journal::Content content;
  content.rows = rows_of(kMany);
  daemon.lead({std::make_unique<ShelfWriter>(std::make_shared<Shelf>()), std::move(content),
               [](const std::string&) {}});
  const UniqueFd page =
      connect_to(Endpoint{.host = "127.0.0.1", .port = daemon.port()}, Deadline::after(kPatience));
  const std::string request = "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n";
  send_all(page.get(), request.data(), request.size(), Deadline::after(kPatience));
  std::string answer, some(1 << 20, ' ');
  double longest = 0, all = 0;  // CPU time of what runs on the io thread
  const Deadline deadline = Deadline::after(kPatience);
  while (true) {
    const double begun = test::thread_cpu_seconds();
    io.run_one_for(1s);
    const double taken = test::thread_cpu_seconds() - begun;
    longest = std::max(longest, taken);
    all += taken;
    const SocketStep step = receive_step(page.get(), some.data(), some.size());
    answer.append(some, 0, step.num_bytes);
    if (!step.ended.empty()) break;
    REQUIRE_FALSE(deadline.expired());
  }
  CHECK(answer.find(concat("\"run_id\":\"job-", kMany, "\"")) != std::string::npos);
  CHECK(longest < all / 4);
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
