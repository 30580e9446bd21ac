// SPDX-License-Identifier: Apache-2.0
// Children of the warden that wait to become workers (agent/warm). No C++ library.
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "agent/warden/protocol.h"

namespace ddprun::agent::warden {

class WaitingWorkers {
 public:
  // `text` lists them in the form that protocol.h describes; null: there are none.
  explicit WaitingWorkers(const char* text);
  ~WaitingWorkers();
  WaitingWorkers(const WaitingWorkers&) = delete;
  WaitingWorkers& operator=(const WaitingWorkers&) = delete;

  // The number of descriptors that `text` names, from kFirstWarmFd on.
  static int count(const char* text);

  bool are_there() const { return size_ > 0; }
  // Moves them into the cgroup where possible. A worker with limits enters its own cgroup later.
  void enter(int cgroup_fd) const;
  // Hands `request` and its descriptors to the next waiting child. Returns its pid, and in *exec_fd
  // the pipe for its SpawnError. −1: none waits any more. `own_cgroup_fd` −1: it stays in its
  // cgroup.
  pid_t hand_over(const Request& request, const int* fds, int own_cgroup_fd, int* exec_fd);
  // Called when one may have been reaped: another process may soon have its number.
  void forget(pid_t ended);
  // Sends SIGKILL to those that still wait.
  void end();

 private:
  struct Waiting {
    pid_t pid;
    int fd;  // −1: it has become a worker, or has ended
  };
  static void close_socket(Waiting& each);

  Waiting* waiting_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ddprun::agent::warden
