// SPDX-License-Identifier: Apache-2.0
// Real processes that are stuck: what the monitor says of them.
#include "agent/hang/hang_monitor.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "agent/hang/waiting_place.h"
#include "tests/agent/group_fixture.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using membership::RankActivity;
using membership::RankReport;

using Commands = std::vector<std::vector<std::string>>;

struct TemporaryDirectory {
  TemporaryDirectory() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~TemporaryDirectory() { std::system(("rm -r " + path).c_str()); }
  std::string path = "/tmp/ddprun-hang-test-XXXXXX";
};

// Workers of stuck_worker, watched; all are foreign unless `pages` says otherwise.
class Watched {
 public:
  explicit Watched(const Commands& commands, std::chrono::milliseconds limit = 1s) {
    std::vector<WorkerSpec> specs;
    for (const auto& command : commands) {
      WorkerSpec spec;
      spec.argv = command;
      spec.environment = {"PATH=/usr/bin:/bin"};
      specs.push_back(std::move(spec));
    }
    pages.resize(commands.size());
    HangMonitorOptions options;
    options.limits.foreign = options.limits.step = limit;
    options.num_workers = static_cast<int>(commands.size());
    options.first_global_rank = 8;
    options.stacks_program = DDPRUN_STACKS;
    HangMonitorEvents events;
    events.read_page = [this](int rank) { return pages[static_cast<std::size_t>(rank)]; };
    events.pids = [this] { return group.group->pids(); };
    events.stalled = [this](RankReport report) { stalled.push_back(std::move(report)); };
    events.inspected = [this](std::vector<RankReport> ranks) { inspected = std::move(ranks); };
    events.steps_timed = [](auto) {};
    group.start(std::move(specs));
    monitor = std::make_unique<HangMonitor>(group.io, options, events);
    monitor->start();
  }
  ~Watched() {
    monitor.reset();
    CHECK(group.stop_and_wait(0ms));
  }

  bool all_ready() {
    return group.wait_for([&] {
      const std::string out = group.out();
      std::size_t count = 0;
      for (std::size_t at = 0; (at = out.find("ready", at)) != std::string::npos; ++at) ++count;
      const auto pids = group.group->pids();  // they may come later than the output
      return count == pages.size() && std::count(pids.begin(), pids.end(), 0) == 0;
    });
  }
  bool await_stalled(std::size_t count) {
    return group.wait_for([&] { return stalled.size() >= count; });
  }
  // Of the rank; taken when it is quiet for a while.
  RankReport inspect(int local_rank) {
    inspected.reset();
    monitor->inspect();
    REQUIRE(group.wait_for([&] { return inspected.has_value(); }));
    const auto found = std::find_if(inspected->begin(), inspected->end(), [&](const auto& each) {
      return each.local_rank == local_rank;
    });
    REQUIRE(found != inspected->end());
    return *found;
  }

  GroupFixture group;
  std::vector<std::optional<ProgressWords>> pages;
  std::unique_ptr<HangMonitor> monitor;
  std::vector<RankReport> stalled;
  std::optional<std::vector<RankReport>> inspected;
};

std::string frames(const RankReport& report) {
  std::string all = report.note;
  for (const std::string& frame : report.frames) all += "\n" + frame;
  return all;
}

bool has_stacks(const RankReport& report) {
  return report.note.find("without libdw") == std::string::npos;
}

TEST_CASE("HangMonitor: a worker stuck in read(), one in sleep, one that spins [proc]") {
  const TemporaryDirectory directory;
  const std::string fifo = directory.path + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  Watched node({{DDPRUN_STUCK_WORKER, "read", fifo},
                {DDPRUN_STUCK_WORKER, "sleep"},
                {DDPRUN_STUCK_WORKER, "spin"}});
  REQUIRE(node.all_ready());
  REQUIRE(node.await_stalled(2));
  for (const RankReport& report : node.stalled) {
    CHECK(report.local_rank != 2);  // it computes: who knows what
    CHECK(report.global_rank == report.local_rank + 8);
    CHECK(report.foreign);
    CHECK(report.activity == RankActivity::kBlocked);
    CHECK(report.quiet >= 1s);
  }
  const RankReport reads = node.inspect(0);
  CHECK(reads.call == "read() of " + fifo);
  CHECK_THAT(reads.wchan, Contains("pipe_read"));
  const RankReport sleeps = node.inspect(1);
  CHECK((sleeps.call.empty() || sleeps.call == "clock_nanosleep()"));  // it was looked at before
  const RankReport spins = node.inspect(2);
  CHECK(spins.call.empty());
  CHECK(spins.state == "R");
  if (has_stacks(reads)) {
    CHECK_THAT(frames(reads), Contains("stuck_in_read(char const*)"));
    CHECK_THAT(frames(sleeps), Contains("stuck_in_sleep()"));
    CHECK_THAT(frames(spins), Contains("stuck_in_a_loop()"));
  }
  CHECK(node.group.failures.empty());  // looking at them harmed none
}

TEST_CASE("HangMonitor: a page that stands still, with a worker that computes: it works [proc]") {
  Watched node(Commands{{DDPRUN_STUCK_WORKER, "spin"}}, 500ms);
  ProgressWords words;
  words.phase = WorkPhase::kTrain;
  node.pages[0] = words;
  REQUIRE(node.all_ready());
  for (int step = 1; step <= 10; ++step) {
    node.pages[0]->step = static_cast<std::uint64_t>(step);
    node.group.wait_for([until = Clock::now() + 150ms] { return Clock::now() >= until; });
  }
  REQUIRE(node.await_stalled(1));
  CHECK(node.stalled[0].activity == RankActivity::kWorks);
  CHECK(node.stalled[0].cpu_percent > 20);
  CHECK(node.stalled[0].phase == "train");
  CHECK_FALSE(node.stalled[0].foreign);
}

TEST_CASE(
    "HangMonitor: behind a shell that waits, its program is looked at, and its CPU counts [proc]") {
  Watched node({{"/bin/sh", "-c", std::string(DDPRUN_STUCK_WORKER) + " spin; true"},
                {"/bin/sh", "-c", std::string(DDPRUN_STUCK_WORKER) + " sleep; true"}},
               3s);
  REQUIRE(node.all_ready());
  REQUIRE(node.await_stalled(1));
  CHECK(node.stalled[0].local_rank == 1);
  const RankReport report = node.inspect(1);
  CHECK(report.call == "clock_nanosleep()");
  CHECK(report.pid != node.group.group->pids()[1]);
  if (has_stacks(report)) CHECK_THAT(frames(report), Contains("stuck_in_sleep()"));
  CHECK(node.stalled.size() == 1);
}

TEST_CASE("HangMonitor: a stopped worker is stopped; it isn't continued by looking at it [proc]") {
  Watched node(Commands{{DDPRUN_STUCK_WORKER, "sleep"}});
  REQUIRE(node.all_ready());
  const pid_t pid = node.group.group->pids()[0];
  REQUIRE(pid > 0);
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  REQUIRE(node.await_stalled(1));
  CHECK(node.stalled[0].activity == RankActivity::kStopped);
  CHECK(node.stalled[0].state == "T");
  const RankReport report = node.inspect(0);
  if (has_stacks(report)) CHECK_THAT(frames(report), Contains("stuck_in_sleep()"));
  CHECK(ProcessSampler(pid).look(false)->state == 'T');
  REQUIRE(::kill(pid, SIGCONT) == 0);
}

TEST_CASE("HangMonitor: without ddprun-stacks the places are there, with the reason [proc]") {
  GroupFixture group;
  group.start_shells({"echo ready; sleep 100"});
  HangMonitorOptions options;
  options.stacks_program = "/nonexistent/ddprun-stacks";
  std::optional<std::vector<RankReport>> inspected;
  HangMonitorEvents events;
  events.read_page = [](int) { return std::nullopt; };
  events.pids = [&] { return group.group->pids(); };
  events.inspected = [&](std::vector<RankReport> ranks) { inspected = std::move(ranks); };
  HangMonitor monitor(group.io, options, events);
  monitor.start();
  REQUIRE(group.wait_output("ready"));
  REQUIRE(group.wait_for([&] {
    monitor.inspect();
    return inspected && !inspected->empty();
  }));
  CHECK_THAT(inspected->front().note, Contains("can't start /nonexistent/ddprun-stacks"));
  CHECK(group.stop_and_wait(0ms));
}

TEST_CASE("HangMonitor: one look at eight workers costs well below 0.5 % of a core [proc]") {
  Watched node(Commands(8, {DDPRUN_STUCK_WORKER, "sleep"}), 1h);
  REQUIRE(node.all_ready());
  const auto used = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto before = used();
  const auto until = Clock::now() + 3s;
  node.group.wait_for([&] { return Clock::now() >= until; });
  const double percent = std::chrono::duration<double>(used() - before).count() / 3 * 100;
  WARN("8 quiet workers: " << percent << " % of a core, " << percent * 125
                           << " us per rank and look");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(percent < 0.5);
#endif
}

TEST_CASE("describe_call: what /proc/PID/syscall says in words") {
  CHECK(describe_call("running", 1).empty());
  CHECK(describe_call("-1 0x7ffc 0x7f40", 1).empty());
  CHECK(describe_call("", 1).empty());
  CHECK(describe_call("99999 0x3 0x0", 1) == "system call 99999");
  CHECK(describe_call("0 0x7fffffff 0x0", ::getpid()) == "read() of descriptor 2147483647");
}

}  // namespace
}  // namespace ddprun::agent
