// SPDX-License-Identifier: Apache-2.0
#include "common/child_pidfd.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;

namespace {

pid_t start_child() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  return pid;
}

}  // namespace

TEST_CASE("child_pidfd: readable once the child has ended", "[proc]") {
  const pid_t pid = start_child();
  const UniqueFd pidfd = open_child_pidfd(pid, "child");
  pollfd child{pidfd.get(), POLLIN, 0};
  CHECK(::poll(&child, 1, 0) == 0);
  ::kill(pid, SIGKILL);
  CHECK(::poll(&child, 1, 10'000) == 1);
  CHECK(::waitpid(pid, nullptr, 0) == pid);
}

TEST_CASE("child_pidfd: without a descriptor no child is left", "[proc]") {
  const pid_t pid = start_child();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::string problem;
  try {
    open_child_pidfd(pid, "the-program");
  } catch (const Error& error) {
    problem = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(problem.find("pidfd_open for the-program") == 0);
  CHECK(::waitpid(pid, nullptr, 0) == -1);
  CHECK(errno == ECHILD);
}
