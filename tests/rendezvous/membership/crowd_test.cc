// SPDX-License-Identifier: Apache-2.0
// Many jobs in one table: what one costs, how many are looked at together, how many one client has.
#include <algorithm>
#include <string>
#include <vector>

#include "common/exit_codes.h"
#include "common/text.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/membership/state.h"
#include "tests/support/catch.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_cpu.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;
using namespace std::chrono_literals;

ConnectionFacts from(const std::string& address, std::optional<std::uint32_t> user = {}) {
  ConnectionFacts facts;
  facts.peer_addr = address;
  facts.peer_is_loopback = address.starts_with("127.");
  facts.user = user;
  return facts;
}

// Jobs that wait for a second node, each of one connection, whose number is the job's.
struct Crowd {
  explicit Crowd(const MachineOptions& options = {})
      : table(options, [this] { return concat("session ", ++num_sessions); }) {}

  Actions join(ConnectionId connection, const std::string& run_id, const ConnectionFacts& facts) {
    Join join;
    join.run_id = run_id;
    join.instance = concat("instance ", connection);
    join.host = "host";
    join.settings.min_nodes = join.settings.max_nodes = 2;
    join.timeouts.keep_alive = 1h;
    return table.step(event::Message{connection, {0, 0, std::move(join)}, facts}, now);
  }
  void begin(int num_jobs) {
    for (int i = 1; i <= num_jobs; ++i) join(i, concat("job ", i), from("10.0.0.1"));
  }
  // As the transport does: until nothing is due now.
  void tick_through() {
    while (table.next_deadline() && *table.next_deadline() <= now) {
      table.step(event::Tick{}, now);
      ++num_ticks;
    }
  }

  int num_sessions = 0, num_ticks = 0;
  JobTable table;
  Clock::time_point now{1h};
};

MachineOptions roomy() {
  MachineOptions options;
  options.max_jobs_per_client = 1'000'000;
  return options;
}

// The text of the refusal; empty: it was taken in.
std::string refusal_in(const Actions& actions) {
  for (const Action& action : actions) {
    const auto* send = variants::get_if<action::Send>(&action);
    if (send == nullptr) continue;
    const auto* refused = variants::get_if<Refused>(&send->envelope.message);
    if (refused == nullptr) continue;
    CHECK(refused->exit_code == static_cast<int>(ExitCode::kRetryable));
    return refused->message;
  }
  return {};
}

TEST_CASE("JobTable: an event of one job costs as much among 16 times as many jobs") {
  // CPU time of a job's begin, ping, loss and end.
  const auto cost_of_job = [](int num_jobs) {
    MachineOptions options = roomy();
    options.journalled = true;
    Crowd crowd(options);
    const double begun = test::thread_cpu_seconds();
    const auto write = [&] { CHECK(crowd.table.take_changes().size() < 1'000); };
    for (int i = 1; i <= num_jobs; ++i) {
      crowd.join(i, concat("1000-", 100'000'000'000 + i), from("10.0.0.1"));
      write();
    }
    for (int i = 1; i <= num_jobs; ++i) {
      crowd.join(num_jobs + i, concat("job ", i), from("10.0.0.1"));
      write();
    }
    for (int i = 1; i <= 2 * num_jobs; ++i) {
      crowd.table.step(event::Heard{static_cast<ConnectionId>(i)}, crowd.now);
      crowd.table.step(event::Closed{static_cast<ConnectionId>(i)}, crowd.now);
      write();
    }
    crowd.now += 1s;
    while (crowd.table.next_deadline()) {
      crowd.now = std::max(crowd.now, *crowd.table.next_deadline());
      crowd.table.step(event::Tick{}, crowd.now);
      write();
    }
    CHECK(crowd.table.idle());
    return (test::thread_cpu_seconds() - begun) / num_jobs;
  };
  constexpr int kFew = test::kIsSanitized ? 100 : 500;
  const double among_few = std::min(cost_of_job(kFew), cost_of_job(kFew));
  CHECK(cost_of_job(16 * kFew) < 6 * among_few);
}

TEST_CASE("JobTable: one Tick is for so many jobs, and the others are due at once") {
  Crowd crowd(roomy());
  constexpr std::size_t kMost = JobTable::kJobsPerTick;
  crowd.begin(3 * kMost);
  for (std::size_t i = 1; i <= 3 * kMost; ++i) crowd.table.step(event::Closed{i}, crowd.now);
  REQUIRE(crowd.table.num_jobs() == 3 * kMost);
  crowd.now += 1s;
  crowd.table.step(event::Tick{}, crowd.now);
  CHECK(crowd.table.num_jobs() == 2 * kMost);
  CHECK(crowd.table.next_deadline() <= crowd.now);
  crowd.tick_through();
  CHECK(crowd.num_ticks == 2);
  CHECK(crowd.table.idle());
  CHECK(crowd.table.take_dropped().size() == 3 * kMost);
}

TEST_CASE("JobTable: jobs and waiting nodes are counted as they come, change and go") {
  Crowd crowd;
  crowd.begin(3);
  const auto in = [&](JobPhase phase) {
    return crowd.table.numbers().in_phase[static_cast<std::size_t>(phase)];
  };
  CHECK(in(JobPhase::kForming) == 3);
  CHECK(crowd.table.numbers().waiting_nodes == 3);
  crowd.join(4, "job 1", from("10.0.0.2"));
  CHECK(in(JobPhase::kRunning) == 1);
  CHECK(in(JobPhase::kForming) == 2);
  crowd.table.step(event::Closed{2}, crowd.now);
  CHECK(crowd.table.numbers().waiting_nodes == 1);
  crowd.now += 1s;
  crowd.tick_through();
  CHECK(in(JobPhase::kForming) == 1);
}

TEST_CASE("JobTable: a client has so many jobs, one more is refused, and others go on") {
  MachineOptions options;
  options.max_jobs_per_client = 2;
  Crowd crowd(options);
  const ConnectionFacts here = from("10.0.0.1"), there = from("10.0.0.2");
  CHECK(refusal_in(crowd.join(1, "a", here)).empty());
  CHECK(refusal_in(crowd.join(2, "b", here)).empty());
  const std::string refused = refusal_in(crowd.join(3, "c", here));
  CHECK_THAT(refused, Contains("10.0.0.1") && Contains("2 (ddprund --jobs-per-client=N)"));
  CHECK(refusal_in(crowd.join(4, "c", there)).empty());
  CHECK(refusal_in(crowd.join(5, "a", here)).empty());  // a node of a job that is there
  crowd.table.step(event::Closed{2}, crowd.now);
  crowd.now += 1s;
  crowd.tick_through();
  CHECK(refusal_in(crowd.join(6, "d", here)).empty());
  CHECK_FALSE(refusal_in(crowd.join(7, "e", here)).empty());
}

TEST_CASE("JobTable: a client is the user that the kernel names, this machine, or a network") {
  MachineOptions options;
  options.max_jobs_per_client = 1;
  Crowd crowd(options);
  ConnectionId last = 0;
  const auto refused = [&](const ConnectionFacts& facts) {
    ++last;
    return refusal_in(crowd.join(last, concat("job ", last), facts));
  };
  CHECK(refused(from("127.0.0.1", 1001)).empty());
  CHECK_THAT(refused(from("127.0.0.2", 1001)), Contains("user 1001"));
  CHECK(refused(from("127.0.0.1", 1002)).empty());
  CHECK(refused(from("127.0.0.1")).empty());
  CHECK_THAT(refused(from("127.9.9.9")), Contains("this machine"));
  CHECK(refused(from("2001:db8::1")).empty());
  CHECK_THAT(refused(from("2001:db8::ffff:2")), Contains("2001:db8::/64"));
  CHECK(refused(from("2001:db8:0:1::1")).empty());
}

TEST_CASE("JobTable: jobs of an earlier process count for whom they were") {
  MachineOptions options;
  options.max_jobs_per_client = 2;
  options.journalled = true;
  Crowd before(options);
  before.join(1, "a", from("10.0.0.1"));
  before.join(2, "b", from("127.0.0.1", 1001));
  journal::Rows rows;
  journal::apply_batch(before.table.take_changes(), rows);
  options.max_jobs_per_client = 1;
  Crowd after(options);
  after.table.restore(rows, {}, after.now);
  CHECK_FALSE(refusal_in(after.join(3, "c", from("10.0.0.1"))).empty());
  CHECK_FALSE(refusal_in(after.join(4, "d", from("127.0.0.1", 1001))).empty());
  CHECK(refusal_in(after.join(5, "e", from("10.0.0.2"))).empty());
}

}  // namespace
}  // namespace ddprun::membership
