// SPDX-License-Identifier: Apache-2.0
// A world of host communicators in processes of their own, so that ranks can be killed.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "tests/worker_sdk/core/host/rank_threads.h"

namespace ddprun::host {

// A rank's results, in memory that it shares with the test.
struct RankReport {
  std::atomic<int> steps;      // the steps that the body counted
  std::atomic<bool> finished;  // whether the body has returned or thrown
  int code;                    // the ErrorCode that it threw; −1: none
  char text[400];
};

class RankProcesses {
 public:
  using Body = std::function<void(Communicator&, RankReport&)>;

  // A function that a rank runs with its store instead of joining.
  using Stranger = std::function<void(store::Store&)>;

  // Forks one child per rank. No thread may run when it is called.
  RankProcesses(const WorldOptions& world, const Body& body) : RankProcesses(world, body, -1, {}) {}
  // The same, but rank `stranger` doesn't join. It runs `instead`.
  RankProcesses(const WorldOptions& world, const Body& body, int stranger, const Stranger& instead)
      : size_(world.node_rank_of.size()) {
    void* memory = ::mmap(nullptr, sizeof(RankReport) * size_, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw_system_error("mmap", errno);
    reports_ = static_cast<RankReport*>(memory);
    for (std::size_t rank = 0; rank < size_; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        if (static_cast<int>(rank) == stranger) {
          instead(store_);
        } else {
          run(world, static_cast<int>(rank), body);
        }
        ::_exit(0);
      }
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    for (const pid_t pid : pids_) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
    }
    ::munmap(reports_, sizeof(RankReport) * size_);
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  RankReport& report(std::size_t rank) { return reports_[rank]; }
  store::Store& store() { return store_; }
  std::size_t size() const { return size_; }

  // Waits until every rank has counted so many steps.
  bool wait_for_steps(int steps, Deadline deadline) {
    for (std::size_t rank = 0; rank < size_; ++rank) {
      while (reports_[rank].steps.load() < steps) {
        if (deadline.expired() || reports_[rank].finished.load()) return false;
        ::poll(nullptr, 0, 1);
      }
    }
    return true;
  }

  void kill(std::size_t rank) { ::kill(pids_[rank], SIGKILL); }

  // Waits for the end of all processes. False: not before the deadline.
  bool wait_for_end(Deadline deadline) {
    for (pid_t& pid : pids_) {
      const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      pollfd entry{.fd = handle.get(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, deadline.poll_timeout_ms()) <= 0) return false;
      ::waitpid(pid, nullptr, 0);
      pid = 0;
    }
    return true;
  }

 private:
  void run(const WorldOptions& world, int rank, const Body& body) {
    RankReport& report = reports_[static_cast<std::size_t>(rank)];
    report.code = -1;
    try {
      const auto communicator = make_host_communicator(store_, options_of(world, rank));
      body(*communicator, report);
    } catch (const Error& error) {
      report.code = static_cast<int>(error.code());
      std::snprintf(report.text, sizeof report.text, "%s", error.what());
    } catch (const std::exception& error) {
      report.code = -2;
      std::snprintf(report.text, sizeof report.text, "while joining: %s", error.what());
    }
    report.finished.store(true);
  }

  test::SharedStore store_;
  const std::size_t size_;
  RankReport* reports_ = nullptr;
  std::vector<pid_t> pids_;
};

}  // namespace ddprun::host
