// SPDX-License-Identifier: Apache-2.0
// ddprun-warden: started by ddprun with a socket as descriptor 3, never by hand.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/warden/warden.h"

namespace {

using ddprun::agent::warden::kCgroupFd;
using ddprun::agent::warden::kSocketFd;

bool socket_is_there() {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

// Descriptors 0–2 exist (a worker's must not land there), 3 is the socket, and up to `last` all are
// the agent's; nothing else is open.
void tidy_descriptors(int last) {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (fd >= 0 && fd < 3);
  for (fd = kSocketFd; fd <= last; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (syscall(SYS_close_range, last + 1, ~0U, 0) == 0) return;
  const long limit = sysconf(_SC_OPEN_MAX);  // Linux before 5.9
  for (fd = last + 1; fd < limit; ++fd) close(fd);
}

// The workers' directory (docs/agent-socket.md), with the socket and the workers' error files in
// it: nobody else may be left to remove it.
void remove_directory(const char* directory) {
  const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) unlinkat(fd, entry->d_name, 0);
  closedir(entries);
  rmdir(directory);
}

}  // namespace

int main(int argc, char** argv) {
  if (!socket_is_there()) {
    constexpr char kMessage[] =
        "ddprun-warden: this is a part of ddprun, which starts it by itself (docs/warden.md)\n";
    return write(STDERR_FILENO, kMessage, strlen(kMessage)) < 0 ? 1 : 2;
  }
  const char* cgroup = argc > 2 ? argv[2] : nullptr;  // its name
  tidy_descriptors(cgroup ? kCgroupFd : kSocketFd);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Nobody but the agent, by closing the socket, or SIGKILL ends the warden.
  sigset_t all, child;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const int child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  if (child_fd < 0) return 1;
  ddprun::agent::warden::Warden warden(kSocketFd, child_fd, cgroup);
  const int status = warden.run();
  if (argc > 1 && *argv[1]) remove_directory(argv[1]);
  return status;
}
