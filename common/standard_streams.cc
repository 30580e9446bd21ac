// SPDX-License-Identifier: Apache-2.0
#include "common/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace ddprun {

void open_standard_streams() {
  int fd;
  do {
    fd = ::open("/dev/null", O_RDWR);  // the lowest free number
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

bool is_in_foreground(int fd) {
  const pid_t foreground = ::tcgetpgrp(fd);  // −1: not our controlling terminal, or none
  return foreground < 0 || foreground == ::getpgrp();
}

}  // namespace ddprun
