// SPDX-License-Identifier: Apache-2.0
#include "common/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace ddprun {

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number, which this one is.
    [[maybe_unused]] const int opened =
        ::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

bool is_in_foreground(int fd) {
  const pid_t foreground = ::tcgetpgrp(fd);  // −1: not our controlling terminal, or none
  return foreground < 0 || foreground == ::getpgrp();
}

}  // namespace ddprun
