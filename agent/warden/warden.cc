// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/warden.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/warden/process_tree.h"
#include "agent/warden/spawn.h"
#include "common/process_stat.h"

namespace ddprun::agent::warden {
namespace {

// While killing: how soon to look again for processes that were born during the last look. Deaths
// wake us anyway; this is for a tree that forks faster than it dies.
constexpr int kSweepIntervalMs = 5;

// SPAWN requests are bounded by kMaxUnanswered; more pending execs wait for their turn in poll.
constexpr size_t kMaxPollFds = 2 + kMaxUnanswered;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

int64_t now_ms() { return now_ns() / 1'000'000; }

void signal_group(pid_t leader, int signal_number) {
  // Until its setsid() the child has no group of its own; afterwards it may have left it.
  if (kill(-leader, signal_number) != 0 || getpgid(leader) != leader) kill(leader, signal_number);
}

}  // namespace

// For process_tree: whom the signal of kStop has not reached, or not moved (a shell's "&" has
// SIGINT and SIGQUIT ignored).
struct AskedGroups {
  static Visit choose(pid_t pid, void* context) {
    const Warden& warden = *static_cast<Warden*>(context);
    const pid_t group = getpgid(pid);
    for (size_t i = 0; i < warden.num_asked_groups_; ++i) {
      if (warden.asked_groups_[i] != group) continue;
      const bool is_deaf =
          warden.stop_signal_ != SIGTERM && ignores_signal(pid, warden.stop_signal_);
      return is_deaf ? Visit::kSignal : Visit::kPass;
    }
    return Visit::kSignal;
  }
};

// For process_tree: the workers that handle the warning.
struct WarnedWorkers {
  static Visit choose(pid_t pid, void* context) {
    const Warden& warden = *static_cast<Warden*>(context);
    ProcessStat stat;
    if (!read_process_stat(pid, &stat)) return Visit::kPrune;
    if (stat.parent == getpid() && !warden.is_worker(pid)) return Visit::kPrune;  // left behind
    return handles_signal(pid, warden.warn_signal_) ? Visit::kAlone : Visit::kPass;
  }
};

// For process_tree: the session of a worker that has ended. Its number is not given to another
// process while one of them lives.
struct LeftBehind {
  static Visit choose(pid_t pid, void* context) {
    const pid_t session = static_cast<Warden*>(context)->ended_worker_;
    return getsid(pid) == session ? Visit::kSignal : Visit::kPass;
  }
};

Warden::Warden(int socket, int child_fd, const char* cgroup_name)
    : socket_(socket),
      child_fd_(child_fd),
      deaths_fd_(epoll_create1(EPOLL_CLOEXEC)),
      cgroup_(cgroup_name ? Cgroup(kCgroupFd, cgroup_name) : Cgroup()) {}

Warden::~Warden() {
  close(deaths_fd_);
  free(workers_);
  free(asked_groups_);
}

int Warden::run() {
  report({.type = ReportType::kReady, .pid = getpid()});
  while (true) {
    pollfd set[kMaxPollFds];
    const size_t num_fds = fill_poll_set(set);
    if (poll(set, num_fds, poll_timeout_ms()) < 0 && errno != EINTR) return 1;
    if (set[1].revents) {
      signalfd_siginfo infos[16];
      while (read(child_fd_, infos, sizeof infos) > 0) {
      }
    }
    // An exec that is decided is reported before the death of the same worker: reap() sees to it.
    for (size_t i = num_workers_; i-- > 0;) {
      for (size_t k = 2; k < num_fds; ++k) {
        if (set[k].fd == workers_[i].exec_fd && set[k].revents) {
          decide_exec(i);
          break;
        }
      }
    }
    reap();
    if (set[0].revents) handle_requests();
    if (lease_is_over()) handle_requests();  // what came since poll, maybe during a standstill
    if (mode_ == Mode::kStopping && num_workers_ == 0 && !rest_asked_) ask_the_rest_to_stop();
    if (lease_is_over()) {
      mode_ = Mode::kKilling;
      swept_at_ms_ = 0;
      lease_until_ms_ = 0;
      report({.type = ReportType::kFenced});
    }
    if (mode_ == Mode::kKilling) {
      sweep();
      reap();
    }
    if (!has_children_ && empty_due_) {
      empty_due_ = false;
      report({.type = ReportType::kEmpty});
    }
    if (!has_children_ && agent_gone_) return 0;
  }
}

size_t Warden::fill_poll_set(pollfd* set) const {
  size_t count = 0;
  set[count++] = {agent_gone_ ? -1 : socket_, POLLIN, 0};
  set[count++] = {child_fd_, POLLIN, 0};
  for (size_t i = 0; i < num_workers_ && count < kMaxPollFds; ++i) {
    if (workers_[i].exec_fd >= 0) set[count++] = {workers_[i].exec_fd, POLLIN, 0};
  }
  return count;
}

int Warden::poll_timeout_ms() const {
  if (mode_ == Mode::kKilling) return has_children_ ? kSweepIntervalMs : -1;
  if (lease_until_ms_ == 0) return -1;
  constexpr int64_t kLongestMs = 3'600'000;
  const int64_t left = lease_until_ms_ - now_ms();
  return static_cast<int>(left < 0 ? 0 : left < kLongestMs ? left : kLongestMs);
}

// The agent stands still, or hears nothing of its rendezvous and doesn't act on it: others may be
// given its workers' ranks soon.
bool Warden::lease_is_over() const {
  return mode_ != Mode::kKilling && lease_until_ms_ != 0 && now_ms() >= lease_until_ms_;
}

// All that are there: a lease may be judged by the newest only, and after a standstill of this
// process (SIGSTOP, a machine with no time for it) older ones lie before it.
void Warden::handle_requests() {
  while (!agent_gone_ && handle_request()) {
  }
}

bool Warden::handle_request() {
  Request request{};
  iovec part{&request, sizeof request};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostSpawnFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && errno == EAGAIN) return false;
  if (size != static_cast<ssize_t>(sizeof request) || request.version != kVersion) {
    // End of file, or an agent of another build: it is gone for us either way.
    agent_gone_ = true;
    mode_ = Mode::kKilling;
    swept_at_ms_ = 0;
    shutdown(socket_, SHUT_RDWR);
    return false;
  }
  int fds[kMostSpawnFds];
  size_t num_fds = 0;
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of;
       part_of = CMSG_NXTHDR(&message, part_of)) {
    if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
    num_fds = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(part_of), num_fds * sizeof(int));
  }
  switch (request.type) {
    case RequestType::kSpawn:
      if (mode_ != Mode::kServing) {
        report_not_started(request.worker, ECANCELED, Stage::kRequest);
      } else if (num_fds < kNumSpawnFds || (message.msg_flags & MSG_CTRUNC)) {
        report_not_started(request.worker, EMFILE, Stage::kRequest);  // no room for them here
      } else {
        spawn(request, fds, num_fds == kMostSpawnFds ? fds[kNumSpawnFds] : -1);
      }
      break;
    case RequestType::kSignal:
      signal_workers(request.signal_number);
      break;
    case RequestType::kWarn:
      warn_workers(request.signal_number);
      break;
    case RequestType::kClear:
      clear(static_cast<pid_t>(request.ended_pid));
      break;
    case RequestType::kStop:
      empty_due_ = true;
      if (mode_ != Mode::kServing) break;
      mode_ = Mode::kStopping;
      stop_signal_ = request.signal_number;
      asked_groups_ = static_cast<pid_t*>(malloc((num_workers_ + 1) * sizeof(pid_t)));
      for (size_t i = 0; asked_groups_ && i < num_workers_; ++i) {
        asked_groups_[num_asked_groups_++] = workers_[i].pid;
      }
      signal_workers(stop_signal_);
      signal_workers(SIGCONT);  // a stopped process would not see it
      break;
    case RequestType::kKill:
      empty_due_ = true;
      mode_ = Mode::kKilling;
      swept_at_ms_ = 0;
      break;
    case RequestType::kLease:
      lease_until_ms_ = request.lease_until_ms;
      break;
  }
  for (size_t i = 0; i < num_fds; ++i) close(fds[i]);
  return true;
}

void Warden::spawn(const Request& request, const int* fds, int own_cgroup_fd) {
  if (num_workers_ == capacity_) {
    const size_t wanted = capacity_ ? capacity_ * 2 : 64;
    void* grown = realloc(workers_, wanted * sizeof(Worker));
    if (!grown) return report_not_started(request.worker, ENOMEM, Stage::kRequest);
    workers_ = static_cast<Worker*>(grown);
    capacity_ = wanted;
  }
  const int four[kNumSpawnFds] = {fds[0], fds[1], fds[2], fds[3]};
  const bool has_own = own_cgroup_fd >= 0;
  const SpawnResult result =
      spawn_worker(request, four, {has_own ? own_cgroup_fd : cgroup_.fd(), has_own});
  if (result.pid < 0) {
    return report_not_started(request.worker, result.error.error_number, result.error.stage);
  }
  has_children_ = true;
  Worker& worker = workers_[num_workers_++];
  worker = {result.pid, request.worker, result.exec_fd, -1};
  watch(worker.pid, &worker.pid_fd);
}

void Warden::watch(pid_t pid, int* pid_fd) const {
  *pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(pid);
  if (*pid_fd < 0 || epoll_ctl(deaths_fd_, EPOLL_CTL_ADD, *pid_fd, &event) == 0) return;
  close(*pid_fd);
  *pid_fd = -1;
}

void Warden::signal_workers(int signal_number) {
  for (size_t i = 0; i < num_workers_; ++i) signal_group(workers_[i].pid, signal_number);
}

bool Warden::is_worker(pid_t pid) const {
  for (size_t i = 0; i < num_workers_; ++i) {
    // Until its exec it is the warden's own program.
    if (workers_[i].pid == pid) return workers_[i].exec_fd < 0;
  }
  return false;
}

void Warden::warn_workers(int signal_number) {
  warn_signal_ = signal_number;
  signal_descendants(signal_number, &WarnedWorkers::choose, this);
}

void Warden::clear(pid_t ended) {
  if (ended <= 0 || is_worker(ended)) return;
  ended_worker_ = ended;
  signal_descendants(SIGKILL, &LeftBehind::choose, this);
}

void Warden::ask_the_rest_to_stop() {
  rest_asked_ = true;
  if (!has_children_) return;
  signal_descendants(SIGTERM, &AskedGroups::choose, this);
  signal_descendants(SIGCONT, &AskedGroups::choose, this);
}

void Warden::sweep() {
  if (!has_children_ || now_ms() - swept_at_ms_ < kSweepIntervalMs) return;
  cgroup_.kill();
  signal_workers(SIGKILL);
  signal_descendants(SIGKILL, nullptr, nullptr);
  swept_at_ms_ = now_ms();
}

// The agent takes the first failure for the cause, so the order counts. wait4 for any child answers
// in the order of birth.
void Warden::reap_in_order_of_death() {
  constexpr int kBatch = 64;
  epoll_event ready[kBatch];
  bool progress = true;
  while (progress) {
    progress = false;
    const int count = epoll_wait(deaths_fd_, ready, kBatch, 0);
    const int64_t seen_ns = now_ns();  // before it is reaped: who sees it gone is later
    for (int i = 0; i < count; ++i) {
      const pid_t pid = static_cast<pid_t>(ready[i].data.u64);
      int status = 0;
      rusage usage;
      if (wait4(pid, &status, WNOHANG, &usage) != pid) continue;
      finished(pid, status, usage, seen_ns);
      progress = true;
    }
  }
}

void Warden::reap() {
  reap_in_order_of_death();
  while (true) {
    int status = 0;
    rusage usage;
    const int64_t seen_ns = now_ns();
    const pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid < 0 && errno == EINTR) continue;
    has_children_ = pid >= 0;
    if (pid <= 0) return;
    finished(pid, status, usage, seen_ns);
  }
}

void Warden::finished(pid_t pid, int status, const rusage& usage, int64_t seen_ns) {
  for (size_t i = 0; i < num_workers_; ++i) {
    if (workers_[i].pid != pid) continue;
    const uint32_t index = workers_[i].index;
    const size_t before = num_workers_;
    if (workers_[i].exec_fd >= 0) decide_exec(i);
    if (num_workers_ != before) return;  // it never started
    remove(i);
    report({.type = ReportType::kExited,
            .worker = index,
            .pid = pid,
            .wait_status = status,
            .max_resident_kb = static_cast<uint64_t>(usage.ru_maxrss),
            .at_ns = seen_ns});
    return;
  }
}

void Warden::decide_exec(size_t position) {
  Worker& worker = workers_[position];
  SpawnError error{0, Stage::kNone};
  ssize_t size;
  do {
    size = read(worker.exec_fd, &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  close(worker.exec_fd);
  worker.exec_fd = -1;
  const uint32_t index = worker.index;
  if (size == static_cast<ssize_t>(sizeof error)) {
    remove(position);  // its death is that of any other child
    report_not_started(index, error.error_number, error.stage);
  } else {
    report({.type = ReportType::kStarted, .worker = index, .pid = worker.pid});
  }
}

void Warden::remove(size_t position) {
  if (const int fd = workers_[position].pid_fd; fd >= 0) {
    epoll_ctl(deaths_fd_, EPOLL_CTL_DEL, fd, nullptr);
    close(fd);
  }
  workers_[position] = workers_[--num_workers_];
}

void Warden::report_not_started(uint32_t index, int error_number, Stage stage) {
  report({.type = ReportType::kNotStarted,
          .worker = index,
          .error_number = error_number,
          .stage = stage});
}

// Waits where the agent is slow: it reads before it writes. When it is gone, recvmsg says so.
void Warden::report(Report report) {
  if (agent_gone_) return;
  if (report.at_ns == 0) report.at_ns = now_ns();
  while (send(socket_, &report, sizeof report, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace ddprun::agent::warden
