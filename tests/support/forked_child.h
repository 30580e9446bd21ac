// SPDX-License-Identifier: Apache-2.0
// A child process, for tests of things that end the process.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>

#include "common/child_process.h"
#include "common/clock.h"
#include "tests/support/catch.h"

namespace ddprun::test {

struct ChildEnd {
  int status = -1;  // exit status; −1: a signal ended the child
  std::chrono::milliseconds took{0};
};

// Forks a child that runs `body`; the child exits with 1 if `body` returns. Kills the child if it
// still runs after `limit`.
inline ChildEnd run_forked(const std::function<void()>& body,
                           std::chrono::seconds limit = std::chrono::seconds(60)) {
  const auto begun = Clock::now();
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    body();
    ::_exit(1);
  }
  const UniqueFd pidfd = open_child_pidfd(pid, "the child");
  pollfd end{pidfd.get(), POLLIN, 0};
  if (::poll(&end, 1, Deadline::after(limit).poll_timeout_ms()) != 1) ::kill(pid, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun)};
}

}  // namespace ddprun::test
