// SPDX-License-Identifier: Apache-2.0
// The monitor's reports about real processes that are stuck.
#include "agent/hang/hang_monitor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "agent/hang/process_sampler.h"
#include "agent/warden_process.h"
#include "tests/agent/group_fixture.h"
#include "tests/support/temp_directory.h"
#include "tests/support/thread_cpu.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using membership::RankActivity;
using membership::RankReport;

using Commands = std::vector<std::vector<std::string>>;

// Processes of stuck_worker under a monitor. All are foreign unless `pages` says otherwise.
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
    options.ranks.first = 8;
    options.stacks_program = DDPRUN_STACKS;
    options.gpus_program = DDPRUN_GPUS;
    HangMonitorEvents events;
    events.read_page = [this](int rank) { return pages[static_cast<std::size_t>(rank)]; };
    events.read_progress = events.read_page;
    events.read_communicators = [this](int) { return communicators; };
    events.pids = [this] { return group.group->pids(); };
    events.stalled = [this](RankReport report) { stalled.push_back(std::move(report)); };
    events.inspected = [this](std::uint64_t of, std::vector<RankReport> ranks) {
      inspected = std::move(ranks);
      answered.push_back(of);
    };
    events.steps_timed = [](auto, auto) {};
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
      const auto pids = group.group->pids();  // the pids may come later than the output
      return count == pages.size() && std::count(pids.begin(), pids.end(), 0) == 0;
    });
  }
  bool await_stalled(std::size_t count) {
    return group.wait_for([&] { return stalled.size() >= count; });
  }
  // The rank's report, taken when the rank is quiet for a while.
  RankReport inspect(int local_rank) {
    inspected.reset();
    monitor->inspect(++inquiry);
    REQUIRE(group.wait_for([&] { return inspected.has_value(); }));
    CHECK(answered.back() == inquiry);
    const auto found = std::find_if(inspected->begin(), inspected->end(), [&](const auto& each) {
      return each.local_rank == local_rank;
    });
    REQUIRE(found != inspected->end());
    return *found;
  }

  GroupFixture group;
  std::vector<std::optional<ProgressWords>> pages;
  std::vector<CommunicatorState> communicators;  // of each worker with a page
  std::unique_ptr<HangMonitor> monitor;
  std::vector<RankReport> stalled;
  std::optional<std::vector<RankReport>> inspected;
  std::vector<std::uint64_t> answered;  // inquiries
  std::uint64_t inquiry = 0;
};

std::string frames(const RankReport& report) {
  std::string all = report.note;
  for (const std::string& frame : report.frames) all += "\n" + frame;
  return all;
}

bool has_stacks(const RankReport& report) { return report.note.find("libdw") == std::string::npos; }

TEST_CASE("HangMonitor: a worker stuck in read(), one in sleep, one that spins", "[proc]") {
  const test::TempDirectory directory;
  const std::string fifo = directory.path("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  Watched node({{DDPRUN_STUCK_WORKER, "read", fifo},
                {DDPRUN_STUCK_WORKER, "sleep"},
                {DDPRUN_STUCK_WORKER, "spin"}});
  REQUIRE(node.all_ready());
  REQUIRE(node.await_stalled(2));
  for (const RankReport& report : node.stalled) {
    CHECK(report.local_rank != 2);  // rank 2 computes, and may be well
    CHECK(report.global_rank == report.local_rank + 8);
    CHECK(report.foreign);
    CHECK(report.activity == RankActivity::kBlocked);
    CHECK(report.quiet >= 1s);
  }
  const RankReport reads = node.inspect(0);
  CHECK(reads.call == "read() of " + fifo);
  CHECK_THAT(reads.wchan, Contains("pipe_read"));
  const RankReport sleeps = node.inspect(1);
  CHECK(sleeps.call == "clock_nanosleep()");  // though a look at its stack has interrupted it
  const RankReport spins = node.inspect(2);
  CHECK(spins.call.empty());
  CHECK(spins.state == "R");
  if (has_stacks(reads)) {
    CHECK_THAT(frames(reads), Contains("stuck_in_read(char const*)"));
    CHECK_THAT(frames(sleeps), Contains("stuck_in_sleep()"));
    CHECK_THAT(frames(spins), Contains("stuck_in_a_loop()"));
  }
  CHECK(node.group.failures.empty());  // the looks harmed no worker
}

TEST_CASE("HangMonitor: a page that stands still, with a worker that computes: it works",
          "[proc]") {
  Watched node(Commands{{DDPRUN_STUCK_WORKER, "spin"}}, 500ms);
  ProgressWords words;
  words.phase = WorkPhase::kTrain;
  node.pages[0] = words;
  node.communicators.resize(2);
  node.communicators[0] = {.communicator = 0, .size = 8, .open = OperationFacts(), .done = 17};
  node.communicators[1] = {.communicator = 1, .size = 2, .open = {}, .done = 40};
  REQUIRE(node.all_ready());
  for (int step = 1; step <= 10; ++step) {
    node.pages[0]->step = static_cast<std::uint64_t>(step);
    node.group.wait_for([until = Clock::now() + 150ms] { return Clock::now() >= until; });
  }
  REQUIRE(node.await_stalled(1));
  CHECK(node.stalled[0].activity == RankActivity::kWorks);
  CHECK(node.stalled[0].cpu_percent > 20);
  CHECK(node.stalled[0].phase == "train");
  CHECK(node.stalled[0].shared_collectives_done == 17);
  CHECK_FALSE(node.stalled[0].foreign);
}

TEST_CASE("HangMonitor: the program of a shell that waits is looked at, and its CPU counts",
          "[proc]") {
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

ProgressWords stands_still() {
  ProgressWords words;
  words.phase = WorkPhase::kTrain;
  words.step = words.steps_done = 3;
  return words;
}

TEST_CASE("HangMonitor: a worker that only moves bytes by send() and recv() works", "[proc]") {
  Watched node({{DDPRUN_STUCK_WORKER, "talk"}, {DDPRUN_STUCK_WORKER, "sleep"}}, 4s);
  node.pages[0] = node.pages[1] = stands_still();
  REQUIRE(node.all_ready());
  // A second until the ranks count as quiet, then time to see work.
  node.group.wait_for_at_most(4s, [] { return false; });
  const RankReport talks = node.inspect(0), sleeps = node.inspect(1);
  INFO(talks.work << "; " << talks.cpu_percent << " % CPU; " << sleeps.work);
  CHECK(talks.cpu_percent <= 5);
  CHECK(talks.activity == RankActivity::kWorks);
  CHECK_THAT(talks.work, Contains("MB/s over sockets"));
  CHECK(sleeps.activity == RankActivity::kBlocked);
  CHECK(sleeps.work.empty());
}

TEST_CASE("HangMonitor: a worker that keeps a GPU busy works", "[proc]") {
  const test::TempDirectory directory;
  const std::string use = directory.path("use"), list = directory.path("list");
  std::ofstream{use};
  std::ofstream{list};
  ::setenv("DDPRUN_NVML_LIBRARY", DDPRUN_FAKE_NVML, 1);
  ::setenv("FAKE_NVML_USE", use.c_str(), 1);
  ::setenv("FAKE_NVML_LIST", list.c_str(), 1);
  {
    Watched node({{DDPRUN_STUCK_WORKER, "sleep"}, {DDPRUN_STUCK_WORKER, "sleep"}}, 4s);
    REQUIRE(node.all_ready());
    const auto pids = node.group.group->pids();
    std::ofstream(use) << "0 " << pids[1] << " 11\n1 " << pids[1] << " 98\n1 1 50\n";
    REQUIRE(node.await_stalled(2));
    const RankReport idle = node.inspect(0), busy = node.inspect(1);
    CHECK(busy.work == "GPU 98 %");
    CHECK(busy.activity == RankActivity::kWorks);
    CHECK(idle.work.empty());
    CHECK(idle.activity == RankActivity::kBlocked);
  }
  for (const char* name : {"DDPRUN_NVML_LIBRARY", "FAKE_NVML_USE", "FAKE_NVML_LIST"}) {
    ::unsetenv(name);
  }
}

TEST_CASE("HangMonitor: a stopped worker is stopped, it isn't continued by looking at it",
          "[proc]") {
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
  // The kernel wakes it to stop again, without a step of its own, when the look lets it go.
  CHECK(node.group.wait_for([pid] { return ProcessSampler(pid).look(false)->state == 'T'; }));
  REQUIRE(::kill(pid, SIGCONT) == 0);
}

TEST_CASE("HangMonitor: the last of the inquiries that come during one is answered, no other",
          "[proc]") {
  Watched node(Commands{{DDPRUN_STUCK_WORKER, "sleep"}}, 200ms);
  REQUIRE(node.all_ready());
  REQUIRE(node.await_stalled(1));
  for (const std::uint64_t inquiry : {1, 2, 3}) node.monitor->inspect(inquiry);
  REQUIRE(node.group.wait_for([&] { return node.answered.size() >= 2; }));
  CHECK(node.answered == std::vector<std::uint64_t>{1, 3});
}

TEST_CASE("HangMonitor: stacks that are asked for beside an inquiry, both are answered", "[proc]") {
  Watched node({{DDPRUN_STUCK_WORKER, "sleep"}, {DDPRUN_STUCK_WORKER, "spin"}}, 200ms);
  REQUIRE(node.all_ready());
  REQUIRE(node.await_stalled(1));
  std::map<int, std::vector<std::string>> lines;
  std::string notes;
  const auto ask = [&](int local_rank) {
    node.monitor->take_stack(local_rank, [&, local_rank](auto its, const std::string& note) {
      lines[local_rank] = std::move(its);
      notes += note;
    });
  };
  ask(0);
  node.monitor->inspect(1);
  ask(1);
  ask(2);
  CHECK(notes == "it has ended");  // there is no such worker
  REQUIRE(node.group.wait_for([&] { return lines.size() == 3 && !node.answered.empty(); }));
  CHECK(node.answered == std::vector<std::uint64_t>{1});
  CHECK(lines[0].front() == "state in clock_nanosleep()");
  CHECK(lines[1].front() == "state running");
  if (notes != "it has ended") return;  // there is no libdw
  CHECK_THAT(listed(lines[0], "\n"), Contains("native stuck_in_sleep()"));
  CHECK_THAT(listed(lines[1], "\n"), Contains("native stuck_in_a_loop()"));
}

TEST_CASE("HangMonitor: the places are there without ddprun-stacks, with the reason", "[proc]") {
  GroupFixture group;
  group.start_shells({"echo ready; sleep 100"});
  HangMonitorOptions options;
  options.stacks_program = "/nonexistent/ddprun-stacks";
  std::optional<std::vector<RankReport>> inspected;
  HangMonitorEvents events;
  events.read_page = events.read_progress = [](int) { return std::nullopt; };
  events.pids = [&] { return group.group->pids(); };
  events.inspected = [&](std::uint64_t, std::vector<RankReport> ranks) {
    inspected = std::move(ranks);
  };
  HangMonitor monitor(group.io, options, events);
  monitor.start();
  REQUIRE(group.wait_output("ready"));
  REQUIRE(group.wait_for([&] {
    monitor.inspect(1);
    return inspected && !inspected->empty();
  }));
  CHECK_THAT(inspected->front().note, Contains("can't start /nonexistent/ddprun-stacks"));
  CHECK(group.stop_and_wait(0ms));
}

// The ddprun-stacks of this test is stuck, and its starter can't even kill it: it never ends an
// order.
TEST_CASE("StackProcess: the wait is over at its limit, whatever becomes of the program",
          "[proc]") {
  boost::asio::io_context io;
  const test::TempDirectory directory;
  const std::string program = directory.path("stuck");
  std::ofstream(program) << "#!/bin/sh\nexec sleep 1000\n";
  REQUIRE(::chmod(program.c_str(), 0700) == 0);
  const auto process = StackProcess::start(io, program);
  for (int i = 0; i < 2; ++i) {
    bool done = false;
    const auto begun = Clock::now();
    process->take({::getpid()}, 200ms, StackProcess::Turn::kAtOnce,
                  [&](const ProcessStacks& stacks, const std::string&) {
                    CHECK(stacks.empty());
                    done = true;
                  });
    while (!done && Clock::now() < begun + 20s) io.run_one_for(1s);
    CHECK(done);
    CHECK_FALSE(process->has_ended());
  }
  process->abandon();
  io.run_for(20s);  // runs until the process is reaped
  CHECK(process->has_ended());
}

TEST_CASE("StackProcess: the program is in memory before it is asked, and serves many times",
          "[proc]") {
  boost::asio::io_context io;
  const test::TempDirectory directory;
  const std::string program = directory.path("ddprun-stacks");
  std::filesystem::copy_file(DDPRUN_STACKS, program);
  const auto process = StackProcess::start(io, program);
  std::filesystem::remove(program);
  for (int i = 0; i < 3; ++i) {
    std::optional<ProcessStacks> found;
    process->take({::getppid()}, 5s, StackProcess::Turn::kAtOnce,
                  [&](const ProcessStacks& stacks, const std::string& problem) {
                    CHECK(problem.empty());
                    found = stacks;
                  });
    while (!found) REQUIRE(io.run_one_for(20s) > 0);
    CHECK(found->count(::getppid()) == 1);
  }
  process->abandon();
  io.run_for(20s);
}

TEST_CASE("StackProcess: the sweep after a dead warden leaves it alone", "[proc]") {
  boost::asio::io_context io;
  const auto process = StackProcess::start(io, DDPRUN_STACKS);
  const auto run_until = [&](const bool& condition) {
    const auto deadline = Clock::now() + kPatience;
    while (!condition && Clock::now() < deadline) {
      io.restart();
      io.run_one_for(100ms);
    }
    return condition;
  };
  bool swept = false, answered = false;
  std::string why;
  const auto sweep = OrphanSweep::start(io, [&] { swept = true; });
  REQUIRE(run_until(swept));
  process->take({::getpid()}, 2s, StackProcess::Turn::kAtOnce,
                [&](const ProcessStacks&, const std::string& problem) {
                  answered = true;
                  why = problem;
                });
  REQUIRE(run_until(answered));
  CHECK(why.empty());
  CHECK_FALSE(process->has_ended());
  process->abandon();
}

TEST_CASE("ProcessSampler: it looks again when it had no descriptors, and then sees", "[proc]") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  ProcessSampler sampler(::getpid());
  const bool seen = sampler.look(false).has_value();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_FALSE(seen);
  CHECK(sampler.look(false).has_value());
}

TEST_CASE("ProcessSampler: a family's work before its first look never counts", "[proc]") {
  int said[2], go[2];
  REQUIRE(::pipe2(said, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(go, O_CLOEXEC) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(go[1]);
    if (::fork() == 0) {
      char byte = 0;
      for (int part = 1; ::read(go[0], &byte, 1) == 1; ++part) {
        timespec used{};
        while (used.tv_nsec < 300'000'000L * part) {
          ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        }
        if (::write(said[1], "r", 1) != 1) break;
      }
      ::_exit(0);
    }
    ::pause();
  }
  ProcessSampler sampler(parent);
  const auto work = [&] {
    char byte = 0;
    REQUIRE(::write(go[1], "g", 1) == 1);
    REQUIRE(::read(said[0], &byte, 1) == 1);
  };
  work();
  const auto first = sampler.look(true)->cpu;
  CHECK(first < 100ms);
  CHECK(sampler.knows_family());
  work();
  const auto second = sampler.look(true)->cpu;
  CHECK(second - first >= 200ms);
  sampler.forget_family();
  work();
  CHECK(sampler.look(true)->cpu - second < 100ms);
  ::close(go[1]);
  REQUIRE(::kill(parent, SIGKILL) == 0);
  CHECK(::waitpid(parent, nullptr, 0) == parent);
}

TEST_CASE("ProcessSampler: work of a child that has ended is no work of its parent", "[proc]") {
  int said[2], go[2];
  REQUIRE(::pipe2(said, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(go, O_CLOEXEC) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    char byte = 0;
    const pid_t child = ::fork();
    if (child == 0) {
      static char buffer[1 << 20];
      const int zero = ::open("/dev/zero", O_RDONLY);
      for (int i = 0; i < 16; ++i) byte += static_cast<char>(::read(zero, buffer, sizeof buffer));
      timespec used{};
      while (used.tv_sec == 0 && used.tv_nsec < 400'000'000) {
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
      }
      ::_exit(::write(said[1], "r", 1) == 1 && ::read(go[0], &byte, 1) == 1 ? 0 : 1);
    }
    ::waitpid(child, nullptr, 0);
    if (::write(said[1], "o", 1) == 1) ::read(go[0], &byte, 1) == 1 ? ::_exit(0) : ::_exit(1);
  }
  char byte = 0;
  ProcessSampler sampler(parent);
  REQUIRE(::read(said[0], &byte, 1) == 1);
  REQUIRE(byte == 'r');
  const ProcessFacts before = sampler.look(true).value();
  REQUIRE(::write(go[1], "g", 1) == 1);
  REQUIRE(::read(said[0], &byte, 1) == 1);
  REQUIRE(byte == 'o');  // the parent has waited for its child
  CHECK(sampler.look(false)->cpu - before.cpu < 200ms);
  const ProcessFacts after = sampler.look(true).value();
  CHECK(after.cpu - before.cpu < 200ms);
  CHECK(after.bytes - before.bytes < 1 << 20);
  CHECK(::write(go[1], "g", 1) == 1);
  CHECK(::waitpid(parent, nullptr, 0) == parent);
}

TEST_CASE("HangMonitor: a look at a quiet worker costs as much as to read a few of its files",
          "[proc]") {
  Watched node(Commands(8, {DDPRUN_STUCK_WORKER, "sleep"}), 1h);
  REQUIRE(node.all_ready());
  // Looks and readings in turn: both find the caches as other programs here have left them.
  double watching = 0, reading = 0;
  for (int look = 0; look < 40; ++look) {
    const double begun = test::thread_cpu_seconds();
    const auto until = Clock::now() + 100ms;  // one look
    node.group.wait_for([&] { return Clock::now() >= until; });
    const double watched = test::thread_cpu_seconds();
    watching += watched - begun;
    for (const pid_t pid : node.group.group->pids()) {
      std::string stat;
      std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), stat);
      REQUIRE_FALSE(stat.empty());
    }
    reading += test::thread_cpu_seconds() - watched;
  }
  const double ratio = watching / reading;
  WARN("a look costs " << ratio << " times what reading a worker's stat does");
  CHECK(ratio < 10);
}

TEST_CASE("describe_call: a line of /proc/PID/syscall becomes words") {
  CHECK(describe_call("running", 1).empty());
  CHECK(describe_call("-1 0x7ffc 0x7f40", 1).empty());
  CHECK(describe_call("", 1).empty());
  CHECK(describe_call("99999 0x3 0x0", 1) == "system call 99999");
  CHECK(describe_call("0 0x7fffffff 0x0", ::getpid()) == "read() of descriptor 2147483647");
  CHECK_THAT(describe_call("0 0x0 0x0", ::getpid()), Contains("read() of stdin ("));
}

}  // namespace
}  // namespace ddprun::agent
