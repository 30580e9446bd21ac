// SPDX-License-Identifier: Apache-2.0
#include "common/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace ddprun {
namespace {

bool was_closed = false;  // stdout, when the program began

}  // namespace

void open_standard_streams() {
  was_closed = ::fcntl(STDOUT_FILENO, F_GETFD) < 0;
  int fd;
  do {
    fd = ::open("/dev/null", O_RDWR);  // the lowest free number
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

bool was_stdout_closed() { return was_closed; }

bool is_in_foreground(int fd) {
  const pid_t foreground = ::tcgetpgrp(fd);  // −1: not our controlling terminal, or none
  return foreground < 0 || foreground == ::getpgrp();
}

}  // namespace ddprun
