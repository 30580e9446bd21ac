// SPDX-License-Identifier: Apache-2.0
#include "common/child_pidfd.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/error.h"

namespace ddprun {

UniqueFd open_child_pidfd(pid_t child, const std::string& program) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (pidfd) return pidfd;
  const int error = errno;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  throw_system_error("pidfd_open for " + program + " (Linux 5.3 or newer is needed)", error);
}

}  // namespace ddprun
