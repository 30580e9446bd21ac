// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/waiting_workers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/warden/process_tree.h"
#include "common/send_descriptors.h"

namespace ddprun::agent::warden {

int WaitingWorkers::count(const char* text) {
  int commas = 0;
  for (const char* at = text; *at; ++at) commas += *at == ',';
  return commas + 1;
}

WaitingWorkers::WaitingWorkers(const char* text) {
  if (!text) return;
  waiting_ = static_cast<Waiting*>(calloc(static_cast<size_t>(count(text)), sizeof(Waiting)));
  for (char* at = const_cast<char*>(text); waiting_ && *at; at += *at == ',') {
    const int fd = static_cast<int>(strtol(at, &at, 10));
    if (*at != ':') return;
    waiting_[size_++] = {static_cast<pid_t>(strtol(at + 1, &at, 10)), fd};
  }
}

WaitingWorkers::~WaitingWorkers() { free(waiting_); }

void WaitingWorkers::enter(int cgroup_fd) const {
  for (size_t i = 0; i < size_; ++i) move_into(cgroup_fd, waiting_[i].pid);
}

pid_t WaitingWorkers::hand_over(const Request& request, const int* fds, int own_cgroup_fd,
                                int* exec_fd) {
  for (size_t i = 0; i < size_; ++i) {
    Waiting& each = waiting_[i];
    if (each.fd < 0) continue;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    const int handed[kMostSpawnFds + 1] = {fds[0], fds[1], fds[2], fds[3], ends[1], own_cgroup_fd};
    const ssize_t sent = send_descriptors(each.fd, &request, sizeof request, handed,
                                          kNumSpawnFds + (own_cgroup_fd < 0 ? 1 : 2));
    close(ends[1]);
    close_socket(each);
    if (sent == static_cast<ssize_t>(sizeof request)) {
      *exec_fd = ends[0];
      return each.pid;
    }
    kill(each.pid, SIGKILL);
    close(ends[0]);
  }
  return -1;
}

void WaitingWorkers::forget(pid_t ended) {
  for (size_t i = 0; i < size_; ++i) {
    if (waiting_[i].pid == ended && waiting_[i].fd >= 0) close_socket(waiting_[i]);
  }
}

void WaitingWorkers::end() {
  for (size_t i = 0; i < size_; ++i) {
    if (waiting_[i].fd < 0) continue;
    // It is not reaped yet: otherwise forget() would have been called.
    kill(waiting_[i].pid, SIGKILL);
    close_socket(waiting_[i]);
  }
}

void WaitingWorkers::close_socket(Waiting& each) {
  close(each.fd);
  each.fd = -1;
}

}  // namespace ddprun::agent::warden
