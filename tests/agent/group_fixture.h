// SPDX-License-Identifier: Apache-2.0
// A WorkerGroup with its events recorded and its console in memory files, for [proc] tests.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/console.h"
#include "agent/worker_group.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"

namespace ddprun::agent {

// Limit of waits for things that take milliseconds.
inline constexpr std::chrono::seconds kPatience{30};

// The bytes of a file in memory.
inline std::string contents(int fd) {
  std::string text(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  return size < 0 ? "" : text;
}

// Makes a file in memory. Several processes may write it at once: each write goes to the end.
inline int memory_file(const char* name) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  ::fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

class GroupFixture {
 public:
  explicit GroupFixture(bool several_workers = true, ConsoleOptions console_options = {-1, -1, -1})
      : stdout_file(memory_file("stdout")),
        stderr_file(memory_file("stderr")),
        console(io, with_files(console_options)) {
    options.several_workers = several_workers;
  }

  // Starts one shell per script; ranks count from 0.
  void start_shells(const std::vector<std::string>& scripts) {
    std::vector<WorkerSpec> specs;
    for (const std::string& script : scripts) specs.push_back(shell(script));
    start(std::move(specs));
  }
  void start(std::vector<WorkerSpec> specs) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].global_rank = specs[i].local_rank = static_cast<int>(i);
    }
    make_group();
    group->start(std::move(specs));
  }
  void make_group() {
    WorkerGroupEvents events;
    events.all_running = [this] { ++num_all_running; };
    events.all_succeeded = [this] { ++num_all_succeeded; };
    events.all_left = [this] { ++num_all_left; };
    events.all_gone = [this] { ++num_all_gone; };
    events.fenced = [this] { ++num_fenced; };
    events.given_up = [this](const std::string& who) { given_up = who; };
    events.worker_failed = [this](membership::WorkerFailure failure, Clock::time_point at) {
      failed_at = at;
      failures.push_back(std::move(failure));
    };
    group = std::make_unique<WorkerGroup>(io, console, options, 3, std::move(events));
  }
  static WorkerSpec shell(const std::string& script) {
    WorkerSpec spec;
    spec.argv = {"/bin/sh", "-c", script};
    spec.environment = {"PATH=/usr/bin:/bin"};
    return spec;
  }

  // Serves the io context until `condition`; false: patience is over.
  bool wait_for(const std::function<bool()>& condition) {
    return wait_for_at_most(kPatience, condition);
  }
  bool wait_for_at_most(std::chrono::milliseconds time, const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      io.restart();
      io.run_one_for(std::chrono::milliseconds(100));
    }
    return true;
  }
  bool wait_output(std::string_view text) {
    return wait_for([&] { return out().find(text) != std::string::npos; });
  }
  // Stops the group and waits for the end. The grace is long enough not to be used up.
  bool stop_and_wait(std::chrono::milliseconds grace = kPatience, int signal_number = SIGTERM) {
    group->stop(grace, signal_number);
    return wait_for([this] { return num_all_gone > 0; });
  }
  // A signal as from outside.
  void kill_workers() {
    for (const pid_t pid : group->pids()) {
      if (pid != 0) ::kill(pid, SIGKILL);
    }
  }

  std::string out() const { return contents(stdout_file.get()); }
  std::string err() const { return contents(stderr_file.get()); }

  boost::asio::io_context io;
  UniqueFd stdout_file;
  UniqueFd stderr_file;
  Console console;
  WorkerGroupOptions options;
  std::unique_ptr<WorkerGroup> group;
  std::vector<membership::WorkerFailure> failures;
  Clock::time_point failed_at{};  // the time of the last failure
  std::string given_up;
  int num_all_running = 0;
  int num_all_succeeded = 0;
  int num_all_left = 0;
  int num_all_gone = 0;
  int num_fenced = 0;

 private:
  ConsoleOptions with_files(ConsoleOptions given) const {
    if (given.stdout_fd < 0) given.stdout_fd = stdout_file.get();
    if (given.stderr_fd < 0) given.stderr_fd = stderr_file.get();
    return given;
  }
};

// A pidfd, which is readable (poll) when the process has ended. Throws if the process is gone
// already.
inline UniqueFd open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  INFO("pid " << pid);
  REQUIRE(fd.valid());
  return fd;
}

}  // namespace ddprun::agent
