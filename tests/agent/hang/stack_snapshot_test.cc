// SPDX-License-Identifier: Apache-2.0
// The effects of a look at a worker's stack on the worker.
#include "agent/hang/stacks/stacks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "agent/hang/process_sampler.h"
#include "agent/hang/stack_process.h"
#include "common/clock.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// A stuck_worker that is ready and that any process may trace.
class StuckWorker {
 public:
  StuckWorker() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(DDPRUN_STUCK_WORKER, "stuck_worker", "sleep", nullptr);
      ::_exit(127);
    }
    char ready = 0;
    const bool is_ready = ::read(ends[0], &ready, 1) == 1;
    ::close(ends[0]);
    ::close(ends[1]);
    REQUIRE(is_ready);
  }
  ~StuckWorker() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  StuckWorker(const StuckWorker&) = delete;
  StuckWorker& operator=(const StuckWorker&) = delete;

  pid_t pid = -1;
};

// ddprun-stacks, with blocking_open before all that it is linked to.
class BlockedStacks {
 public:
  BlockedStacks() {
    std::ofstream(program()) << "#!/bin/sh\n"
                             << "export ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0\n"
                             << "LD_PRELOAD=" DDPRUN_BLOCKING_OPEN " exec " DDPRUN_STACKS "\n";
    REQUIRE(::chmod(program().c_str(), 0700) == 0);
  }

  std::string program() const { return directory_.path("blocked-stacks"); }

 private:
  test::TempDirectory directory_;
};

TEST_CASE("ddprun-stacks: the worker runs while its files are read, for ever", "[proc]") {
  const StuckWorker worker;
  const BlockedStacks blocked;
  boost::asio::io_context io;
  const auto process = StackProcess::start(io, blocked.program());
  std::optional<ProcessStacks> found;
  process->take({worker.pid}, 1s, StackProcess::Turn::kAtOnce,
                [&](const ProcessStacks& stacks, const std::string&) { found = stacks; });
  ProcessSampler sampler(worker.pid);
  std::optional<Clock::time_point> stopped_since;
  Clock::duration longest{0};
  while (!found) {
    io.run_one_for(1ms);
    const auto now = Clock::now();
    if (sampler.look(false)->state != 't') {
      stopped_since.reset();
    } else {
      if (!stopped_since) stopped_since = now;
      longest = std::max(longest, now - *stopped_since);
    }
  }
  CHECK(longest < 50ms);
  CHECK(found->empty());  // the read was blocked indeed
  process->abandon();
  io.restart();
  io.run_for(20s);
}

TEST_CASE("StackProcess: others wait when as many as may are under way, but not an urgent one",
          "[proc]") {
  const std::array<StuckWorker, StackProcess::kMostAtOnce> workers;
  const BlockedStacks blocked;
  boost::asio::io_context io;
  const auto process = StackProcess::start(io, blocked.program());
  enum { kFirst, kStuck, kWaits, kUrgent };
  std::vector<int> over;
  const auto take = [&](pid_t pid, std::chrono::milliseconds limit, StackProcess::Turn turn,
                        int which) {
    process->take({pid}, limit, turn,
                  [&over, which](const auto&, const auto&) { over.push_back(which); });
  };
  take(workers[0].pid, 500ms, StackProcess::Turn::kWhenFree, kFirst);
  for (std::size_t i = 1; i < workers.size(); ++i) {
    take(workers[i].pid, 1h, StackProcess::Turn::kWhenFree, kStuck);
  }
  take(::getppid(), 1h, StackProcess::Turn::kWhenFree, kWaits);
  take(::getppid(), 1h, StackProcess::Turn::kAtOnce, kUrgent);
  while (over.size() < 3) REQUIRE(io.run_one_for(20s) > 0);
  CHECK(over == std::vector<int>{kUrgent, kFirst, kWaits});
  process->abandon();
  io.restart();
  io.run_for(20s);
}

TEST_CASE("take_snapshots: several at once, each is held for less than 50 ms", "[proc]") {
  const StuckWorker first, second;
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  REQUIRE(::sigprocmask(SIG_BLOCK, &child, &before) == 0);
  const auto snapshots = take_snapshots({first.pid, second.pid, 1'000'000'000});
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  REQUIRE(snapshots.size() == 3);
  for (std::size_t i = 0; i < 2; ++i) {
    INFO(snapshots[i].note);
    CHECK(snapshots[i].note.empty());
    CHECK(snapshots[i].pc != 0);
    CHECK(snapshots[i].stack.size() >= 4096);
    CHECK(snapshots[i].held < 50ms);
    WARN("held for " << snapshots[i].held.count() / 1000 << " us");
  }
  CHECK(ProcessSampler(first.pid).look(false)->state == 'S');
  CHECK(snapshots[2].note == "can't be traced: No such process");
}

}  // namespace
}  // namespace ddprun::agent
