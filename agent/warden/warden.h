// SPDX-License-Identifier: Apache-2.0
// The workers' parent: does what the agent asks, reports, and when the agent is gone kills every
// descendant and ends. One thread, no C++ library, so that it stays under 1 MB. docs/warden.md.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/warden/cgroup.h"
#include "agent/warden/protocol.h"

struct pollfd;
struct rusage;

namespace ddprun::agent::warden {

class Warden {
 public:
  // `socket` is the agent's peer, `child_fd` a signalfd for SIGCHLD. `cgroup_name`: of the workers'
  // cgroup, which is descriptor kCgroupFd; null: the warden makes one where it may.
  Warden(int socket, int child_fd, const char* cgroup_name);
  ~Warden();
  Warden(const Warden&) = delete;
  Warden& operator=(const Warden&) = delete;

  // Serves until the agent's end is closed and no descendant is left. Returns the exit status.
  int run();

 private:
  struct Worker {
    pid_t pid;
    uint32_t index;  // the agent's
    int exec_fd;     // −1 once the exec is decided
    int pid_fd;      // watched by deaths_fd_; −1: there was no descriptor for it
  };
  enum class Mode { kServing, kStopping, kKilling };

  void handle_requests();
  bool handle_request();  // false: there is none now
  void spawn(const Request& request, const int* fds, int own_cgroup_fd);
  void signal_workers(int signal_number);
  // Those that have a handler for it. Of a worker that has none (a shell that runs the program):
  // the nearest below it that do. The signal would end who has none.
  void warn_workers(int signal_number);
  void clear(pid_t ended);
  void ask_the_rest_to_stop();
  void sweep();
  void reap();
  void reap_in_order_of_death();
  void watch(pid_t pid, int* pid_fd) const;
  void finished(pid_t pid, int status, const rusage& usage, int64_t seen_ns);
  void decide_exec(size_t position);
  void remove(size_t position);
  void report(Report report);
  void report_not_started(uint32_t index, int error_number, Stage stage);
  size_t fill_poll_set(pollfd* set) const;
  int poll_timeout_ms() const;
  bool lease_is_over() const;
  bool is_worker(pid_t pid) const;

  const int socket_;
  const int child_fd_;
  const int deaths_fd_;  // epoll: workers' pidfds become ready in the order of their deaths
  bool agent_gone_ = false;
  int64_t lease_until_ms_ = 0;  // 0: for ever
  Mode mode_ = Mode::kServing;
  bool rest_asked_ = false;  // SIGTERM was sent to what the workers left behind
  bool empty_due_ = false;   // the agent waits for kEmpty
  bool has_children_ = false;
  int64_t swept_at_ms_ = 0;
  Cgroup cgroup_;  // of the workers
  // Workers that were started and not reaped; grows, never shrinks.
  Worker* workers_ = nullptr;
  size_t num_workers_ = 0;
  size_t capacity_ = 0;
  int stop_signal_ = 0;  // of kStop
  // Process groups that it reached.
  pid_t* asked_groups_ = nullptr;
  size_t num_asked_groups_ = 0;

  int warn_signal_ = 0;     // of kWarn, while it is sent
  pid_t ended_worker_ = 0;  // likewise of kClear

  friend struct AskedGroups;
  friend struct WarnedWorkers;
  friend struct LeftBehind;
};

}  // namespace ddprun::agent::warden
