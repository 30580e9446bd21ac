// SPDX-License-Identifier: Apache-2.0
// ddprun-warden: started by ddprun with a socket as descriptor 3, never by hand.
//
// The workers' parent: it does what the agent asks, and reports. When the agent is gone it kills
// every descendant and ends. It has one thread and no C++ library, so that it stays under 1 MB.
// docs/warden.md.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/warden/process_tree.h"
#include "agent/warden/protocol.h"
#include "agent/warden/stop_order.h"
#include "agent/warden/waiting_workers.h"
#include "common/process_stat.h"

namespace ddprun::agent::warden {
namespace {

// Signals that are passed on to the agent if a worker or its children send them to the warden,
// their parent. torchrun's workers do that to end the job.
constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};

// ---- A kSpawn request becomes a process that is about to exec. ----

// The cgroup in which a worker starts.
struct SpawnCgroup {
  int fd = -1;           // −1: in the warden's cgroup
  bool is_must = false;  // it can't start elsewhere, since this cgroup has its limits
};

struct SpawnResult {
  pid_t pid = -1;  // −1: see `error`
  // Readable when the exec is decided: end of file = it runs, otherwise a SpawnError.
  int exec_fd = -1;
  SpawnError error{};
};

// The payload, mapped, and the pointer arrays into it.
struct Command {
  char* payload = nullptr;
  size_t payload_bytes = 0;
  const char* directory = nullptr;
  char** argv = nullptr;
  char** envp = nullptr;
};

void release(Command& command) {
  if (command.payload) munmap(command.payload, command.payload_bytes);
  free(command.argv);
  free(command.envp);
}

// Returns 0, or an errno value.
int read_command(const Request& request, int payload_fd, Command* command) {
  struct stat info;
  if (fstat(payload_fd, &info) != 0) return errno;
  const size_t size = request.payload_bytes;
  const size_t num_strings = size_t{1} + request.num_arguments + request.num_variables;
  if (size == 0 || static_cast<size_t>(info.st_size) != size || request.num_arguments == 0 ||
      num_strings > size) {
    return EINVAL;
  }
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, payload_fd, 0);
  if (map == MAP_FAILED) return errno;
  command->payload = static_cast<char*>(map);
  command->payload_bytes = size;
  command->argv = static_cast<char**>(calloc(request.num_arguments + size_t{1}, sizeof(char*)));
  command->envp = static_cast<char**>(calloc(request.num_variables + size_t{1}, sizeof(char*)));
  if (!command->argv || !command->envp) return ENOMEM;
  char* at = command->payload;
  char* const end = at + size;
  for (size_t i = 0; i < num_strings; ++i) {
    char* const zero = static_cast<char*>(memchr(at, 0, end - at));
    if (!zero) return EINVAL;
    if (i == 0) {
      command->directory = at;
    } else if (i <= request.num_arguments) {
      command->argv[i - 1] = at;
    } else {
      command->envp[i - 1 - request.num_arguments] = at;
    }
    at = zero + 1;
  }
  return 0;
}

[[noreturn]] void fail(int pipe_fd, Stage stage) {
  const SpawnError error{errno, stage};
  while (write(pipe_fd, &error, sizeof error) < 0 && errno == EINTR) {
  }
  _exit(127);
}

// Sets the soft limit; the hard one stays. If that fails, the worker only has a limit that is too
// high.
void limit_open_files(uint64_t soft) {
  struct rlimit limit;
  if (soft == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Returns 0, or -1 with errno.
int bind_to_cpus(const uint64_t (&cpus)[kCpuWords]) {
  for (const uint64_t word : cpus) {
    if (word == 0) continue;
    return static_cast<int>(syscall(SYS_sched_setaffinity, 0, sizeof cpus, cpus));
  }
  return 0;
}

[[noreturn]] void run_child(const Command& command, const Request& request,
                            const int (&fds)[kNumSpawnFds], int pipe_fd, pid_t warden, pid_t agent,
                            int cgroup_to_enter) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If Yama restricts tracing, this lets only the agent's children look at this worker's stack. It
  // is kept over the exec. On other systems the error doesn't matter.
  prctl(PR_SET_PTRACER, static_cast<unsigned long>(agent));
  if (getppid() != warden) _exit(127);  // the warden died before the line above
  if (cgroup_to_enter >= 0 && move_into(cgroup_to_enter, 0) != 0) fail(pipe_fd, Stage::kCgroup);
  for (int target = 0; target < 3; ++target) dup2(fds[target + 1], target);
  limit_open_files(request.max_open_files);
  if (bind_to_cpus(request.cpus) != 0) fail(pipe_fd, Stage::kCpus);
  if (*command.directory && chdir(command.directory) != 0) fail(pipe_fd, Stage::kDirectory);
  // Resets all signals: handlers end with the exec, but ignored signals would stay ignored. It uses
  // the system call itself, since the C library hides two signals that may be ignored, too.
  constexpr long kDefaultAction[4] = {0, 0, 0, 0};  // the kernel's struct: SIG_DFL and nothing else
  constexpr size_t kMaskBytes = 8;
  for (int number = 1; number <= 64; ++number) {
    syscall(SYS_rt_sigaction, number, kDefaultAction, nullptr, kMaskBytes);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(command.argv[0], command.argv, command.envp);
  fail(pipe_fd, Stage::kExec);
}

// Does the same as fork(), but the child is born in the cgroup: moving it there later would wait
// for all CPUs (10 ms). *is_born_there is false if the kernel lacks this call, or a filter of
// system calls forbids it.
pid_t fork_into(const SpawnCgroup& cgroup, bool* is_born_there) {
  *is_born_there = false;
  if (cgroup.fd >= 0) {
    clone_args arguments{};
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = SIGCHLD;
    arguments.cgroup = static_cast<uint64_t>(cgroup.fd);
    const long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    *is_born_there = pid >= 0;
    if (pid >= 0) return static_cast<pid_t>(pid);
  }
  return fork();
}

// Forks a worker, which is cheap in so small a process. Unlike vfork it lets several execs go on at
// once, and none holds up the warden: an exec from a dead file server hangs. The child gets its own
// session, is killed when the warden dies, and has default signals, an empty mask and only the
// three descriptors. The caller keeps `fds` (payload, stdin, stdout, stderr).
SpawnResult spawn_worker(const Request& request, const int (&fds)[kNumSpawnFds],
                         const SpawnCgroup& cgroup) {
  SpawnResult result;
  Command command;
  const int problem = read_command(request, fds[0], &command);
  int ends[2];
  if (problem != 0) {
    result.error = {problem, Stage::kRequest};
  } else if (pipe2(ends, O_CLOEXEC) != 0) {
    result.error = {errno, Stage::kFork};
  } else {
    const pid_t warden = getpid();
    const pid_t agent = getppid();
    bool is_born_there;
    result.pid = fork_into(cgroup, &is_born_there);
    if (result.pid == 0) {
      // In the child of clone3 the call returned 0 as well, so is_born_there is true there.
      const int to_enter = cgroup.is_must && !is_born_there ? cgroup.fd : -1;
      run_child(command, request, fds, ends[1], warden, agent, to_enter);
    }
    if (result.pid < 0) result.error = {errno, Stage::kFork};
    close(ends[1]);
    if (result.pid > 0) {
      result.exec_fd = ends[0];
    } else {
      close(ends[0]);
    }
  }
  release(command);
  return result;
}

// ---- The warden. ----

// The time between two looks for new processes while killing. Deaths wake the warden anyway; this
// is for a tree that forks faster than it dies.
constexpr int kSweepIntervalMs = 5;

// kMaxUnanswered limits the SPAWN requests; more pending execs are polled in their turn.
constexpr size_t kMaxPollFds = 2 + kMaxUnanswered;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

int64_t now_ms() { return now_ns() / 1'000'000; }

void signal_group(pid_t leader, int signal_number) {
  // Until its setsid() the child has no group of its own. Later it may have left its group.
  if (kill(-leader, signal_number) != 0 || getpgid(leader) != leader) kill(leader, signal_number);
}

class Warden {
 public:
  // `socket` is the agent's peer, `signal_fd` a signalfd for SIGCHLD and kPassedOn. `cgroup_name`
  // names the workers' cgroup, which is descriptor kCgroupFd; null: the warden makes one if it may.
  // `waiting` lists the descriptors from kFirstWarmFd on, as in protocol.h; null: there are none.
  Warden(int socket, int signal_fd, const char* cgroup_name, const char* waiting);
  ~Warden();
  Warden(const Warden&) = delete;
  Warden& operator=(const Warden&) = delete;

  // Serves until the agent has closed its end and no descendant is left. Returns the exit status.
  int run();

 private:
  struct Worker {
    pid_t pid;
    uint32_t index;    // the agent's index
    int exec_fd;       // −1 once it is known whether the exec succeeded
    int pid_fd;        // watched by deaths_fd_; −1: no descriptor was left for it
    SpawnError fresh;  // the one of stage kFresh, if it came
  };
  enum class Mode { kServing, kStopping, kKilling };

  void handle_requests();
  bool handle_request();  // false: there is no request now
  void spawn(const Request& request, const int* fds, int own_cgroup_fd);
  // Passes on a signal that a worker sent to its parent: it is meant for the launcher.
  void pass_on(int signal_number, pid_t sender);
  void signal_workers(int signal_number);
  // Warns the workers that have a handler for the signal: it would end one that has none. If a
  // worker has none (a shell that runs the program), it warns the nearest processes below that have
  // one.
  void warn_workers(int signal_number);
  void clear(pid_t ended);
  void sweep();
  void reap();
  void reap_in_order_of_death();
  void watch(pid_t pid, int* pid_fd) const;
  void finished(pid_t pid, int status, const rusage& usage, int64_t seen_ns);
  // Decides those that are over by now, whether poll() has reported them or not.
  void decide_execs();
  void decide_exec(size_t position);
  void remove(size_t position);
  void report(Report report);
  void report_not_started(uint32_t index, int error_number, Stage stage);
  size_t fill_poll_set(pollfd* set) const;
  int poll_timeout_ms() const;
  bool lease_is_over() const;
  bool is_worker(pid_t pid) const;
  // Whether an ended worker has left it; true also if the process has gone itself.
  bool is_left_behind(pid_t pid) const;

  // These are for signal_descendants(); `warden` is this object.
  // Chooses the workers that handle the warning.
  static Visit choose_warned(pid_t pid, void* warden);
  // Chooses the process that sent a signal.
  static Visit choose_sender(pid_t pid, void* warden);
  // Chooses the session of a worker that has ended. Its number is not used again while one of its
  // processes lives.
  static Visit choose_left_behind(pid_t pid, void* warden);

  const int socket_;
  const int signal_fd_;
  const pid_t agent_ = getppid();
  const int deaths_fd_;  // epoll: workers' pidfds become ready in the order of their deaths
  bool agent_gone_ = false;
  int64_t lease_until_ms_ = 0;  // 0: for ever
  Mode mode_ = Mode::kServing;
  bool empty_due_ = false;  // the agent waits for kEmpty
  bool has_children_ = false;
  int64_t swept_at_ms_ = 0;
  Cgroup cgroup_;  // the workers'
  WaitingWorkers waiting_;
  // Workers that were started and not reaped. The array grows and never shrinks.
  Worker* workers_ = nullptr;
  size_t num_workers_ = 0;
  size_t capacity_ = 0;
  StopOrder stop_;

  int warn_signal_ = 0;     // kWarn's signal, while it is sent
  pid_t sender_ = 0;        // used in pass_on()
  bool passed_on_ = false;  // a worker's signal was passed on
  pid_t ended_worker_ = 0;  // kClear's worker, while its processes are signalled
};

bool Warden::is_left_behind(pid_t pid) const {
  ProcessStat stat;
  if (!read_process_stat(pid, &stat)) return true;
  return stat.parent == getpid() && !is_worker(pid);
}

Visit Warden::choose_warned(pid_t pid, void* context) {
  const Warden& warden = *static_cast<Warden*>(context);
  if (warden.is_left_behind(pid)) return Visit::kPrune;
  return handles_signal(pid, warden.warn_signal_) ? Visit::kAlone : Visit::kPass;
}

Visit Warden::choose_left_behind(pid_t pid, void* context) {
  const pid_t session = static_cast<Warden*>(context)->ended_worker_;
  return getsid(pid) == session ? Visit::kSignal : Visit::kPass;
}

Visit Warden::choose_sender(pid_t pid, void* context) {
  const Warden& warden = *static_cast<Warden*>(context);
  if (warden.is_left_behind(pid)) return Visit::kPrune;
  return pid == warden.sender_ ? Visit::kAlone : Visit::kPass;
}

Warden::Warden(int socket, int signal_fd, const char* cgroup_name, const char* waiting)
    : socket_(socket),
      signal_fd_(signal_fd),
      deaths_fd_(epoll_create1(EPOLL_CLOEXEC)),
      cgroup_(cgroup_name ? Cgroup(kCgroupFd, cgroup_name) : Cgroup()),
      waiting_(waiting) {
  has_children_ = waiting_.are_there();
  waiting_.enter(cgroup_.fd());
}

Warden::~Warden() {
  close(deaths_fd_);
  free(workers_);
}

int Warden::run() {
  report({.type = ReportType::kReady, .pid = getpid()});
  while (true) {
    pollfd set[kMaxPollFds];
    const size_t num_fds = fill_poll_set(set);
    if (poll(set, num_fds, poll_timeout_ms()) < 0 && errno != EINTR) return 1;
    if (set[1].revents) {
      signalfd_siginfo infos[16];
      // Reads once: poll() reports if there are more, and the other descriptors get their turn.
      const ssize_t size = read(signal_fd_, infos, sizeof infos);
      for (ssize_t i = 0; i < size / static_cast<ssize_t>(sizeof infos[0]); ++i) {
        const int number = static_cast<int>(infos[i].ssi_signo);
        if (number != SIGCHLD) pass_on(number, static_cast<pid_t>(infos[i].ssi_pid));
      }
    }
    // reap() makes sure that a decided exec is reported before the death of the same worker.
    decide_execs();
    reap();
    if (set[0].revents) handle_requests();
    // Reads what came since poll(), perhaps during a standstill.
    if (lease_is_over()) handle_requests();
    if (mode_ == Mode::kStopping) {
      stop_.ask_spared(false);  // a parent may have ended
      if (num_workers_ == 0 && has_children_) stop_.ask_the_rest();
    }
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
  set[count++] = {signal_fd_, POLLIN, 0};
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

// Whether the lease has run out. Then the agent stands still, or hears nothing of its rendezvous
// and doesn't act on it. Others may soon get its workers' ranks.
bool Warden::lease_is_over() const {
  return mode_ != Mode::kKilling && lease_until_ms_ != 0 && now_ms() >= lease_until_ms_;
}

// Reads all waiting requests, since only the newest lease counts. After a standstill of this
// process (SIGSTOP, a busy machine) older leases come before it.
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
    // This is the end of file, or an agent of another build: in both cases the agent counts as
    // gone.
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
        // This process had no room for them.
        report_not_started(request.worker, EMFILE, Stage::kRequest);
      } else {
        spawn(request, fds, num_fds == kMostSpawnFds ? fds[kNumSpawnFds] : -1);
      }
      break;
    case RequestType::kWarn:
      warn_workers(request.signal_number);
      break;
    case RequestType::kClear:
      clear(static_cast<pid_t>(request.ended_pid));
      break;
    case RequestType::kStop:
      empty_due_ = true;
      waiting_.end();
      if (mode_ == Mode::kStopping) stop_.ask_spared(true);
      if (mode_ != Mode::kServing) break;
      mode_ = Mode::kStopping;
      stop_.begin(request.signal_number, num_workers_);
      for (size_t i = 0; i < num_workers_; ++i) stop_.add_group(workers_[i].pid);
      if (!stop_.ask_apart()) signal_workers(request.signal_number);
      signal_workers(SIGCONT);  // a stopped process would not see the signal
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
  SpawnResult result;
  result.pid = waiting_.hand_over(request, fds, own_cgroup_fd, &result.exec_fd);
  if (result.pid < 0) {
    result = spawn_worker(request, four, {has_own ? own_cgroup_fd : cgroup_.fd(), has_own});
  }
  if (result.pid < 0) {
    return report_not_started(request.worker, result.error.error_number, result.error.stage);
  }
  has_children_ = true;
  Worker& worker = workers_[num_workers_++];
  worker = {result.pid, request.worker, result.exec_fd, -1, {}};
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

// Passes on only signals of workers. One that others send, such as a scheduler that signals all of
// a job, has reached the agent already. Only the first counts: a second one would tell the agent to
// kill the workers now.
void Warden::pass_on(int signal_number, pid_t sender) {
  if (passed_on_ || mode_ != Mode::kServing) return;
  decide_execs();  // the sender's exec may have ended after poll() returned
  sender_ = sender;
  const bool is_of_workers = signal_descendants(0, &choose_sender, this) > 0;
  if (!is_of_workers || getppid() != agent_) return;
  passed_on_ = true;
  kill(agent_, signal_number);
}

void Warden::signal_workers(int signal_number) {
  for (size_t i = 0; i < num_workers_; ++i) signal_group(workers_[i].pid, signal_number);
}

bool Warden::is_worker(pid_t pid) const {
  for (size_t i = 0; i < num_workers_; ++i) {
    // Until its exec it is still the warden's program.
    if (workers_[i].pid == pid) return workers_[i].exec_fd < 0;
  }
  return false;
}

void Warden::warn_workers(int signal_number) {
  decide_execs();  // a process whose exec has ended since poll() is a worker, too
  warn_signal_ = signal_number;
  signal_descendants(signal_number, &choose_warned, this);
}

void Warden::clear(pid_t ended) {
  if (ended <= 0 || is_worker(ended)) return;
  ended_worker_ = ended;
  signal_descendants(SIGKILL, &choose_left_behind, this);
}

void Warden::sweep() {
  if (!has_children_ || now_ms() - swept_at_ms_ < kSweepIntervalMs) return;
  cgroup_.kill();
  signal_workers(SIGKILL);
  signal_descendants(SIGKILL, nullptr, nullptr);
  swept_at_ms_ = now_ms();
}

// Reaps the children in the order of their deaths, since the agent takes the first failure for the
// cause. wait4 for any child would answer in the order of their births.
void Warden::reap_in_order_of_death() {
  constexpr int kBatch = 64;
  epoll_event ready[kBatch];
  bool progress = true;
  while (progress) {
    progress = false;
    const int count = epoll_wait(deaths_fd_, ready, kBatch, 0);
    // The time is taken before it is reaped, so nobody sees the death earlier.
    const int64_t seen_ns = now_ns();
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
  waiting_.forget(pid);
  for (size_t i = 0; i < num_workers_; ++i) {
    if (workers_[i].pid != pid) continue;
    const uint32_t index = workers_[i].index;
    const size_t before = num_workers_;
    if (workers_[i].exec_fd >= 0) decide_exec(i);
    if (num_workers_ != before) return;  // its exec failed
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

void Warden::decide_execs() {
  // Begins at the end: the last one replaces one that is removed.
  for (size_t i = num_workers_; i-- > 0;) {
    pollfd exec{workers_[i].exec_fd, POLLIN, 0};
    if (exec.fd >= 0 && poll(&exec, 1, 0) > 0) decide_exec(i);
  }
}

void Warden::decide_exec(size_t position) {
  Worker& worker = workers_[position];
  SpawnError error{};
  bool is_answer;
  do {
    ssize_t size;
    do {
      size = read(worker.exec_fd, &error, sizeof error);
    } while (size < 0 && errno == EINTR);
    is_answer = size == static_cast<ssize_t>(sizeof error);
    if (!is_answer || error.stage != Stage::kFresh) break;
    worker.fresh = error;
    pollfd more{worker.exec_fd, POLLIN, 0};
    if (poll(&more, 1, 0) <= 0) return;
  } while (true);
  close(worker.exec_fd);
  worker.exec_fd = -1;
  const uint32_t index = worker.index;
  if (is_answer) {
    remove(position);  // its death is handled as that of any other child
    report_not_started(index, error.error_number, error.stage);
  } else {
    report({.type = ReportType::kStarted,
            .worker = index,
            .pid = worker.pid,
            .error_number = worker.fresh.error_number,
            .stage = worker.fresh.stage});
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

// Sends a report, and waits if the agent is slow; the agent reads before it writes. If it is gone,
// recvmsg() says so.
void Warden::report(Report report) {
  if (agent_gone_) return;
  if (report.at_ns == 0) report.at_ns = now_ns();
  while (send(socket_, &report, sizeof report, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

bool socket_is_there() {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

// Makes sure that descriptors 0–2 are open (a worker's must not get these numbers), and closes all
// after `last`. Descriptor 3 is the socket, and all from there to `last` are the agent's.
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

// Removes the workers' directory (docs/agent-socket.md) with the socket, the workers' error files
// and the observer's folder. No other process may be left to remove it.
void remove_directory(int at, const char* name) {
  const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) {
    close(fd);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    const bool is_directory = unlinkat(fd, entry->d_name, 0) != 0 && errno == EISDIR;
    if (is_directory && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      remove_directory(fd, entry->d_name);
    }
  }
  closedir(entries);
  unlinkat(at, name, AT_REMOVEDIR);
}

}  // namespace
}  // namespace ddprun::agent::warden

int main(int argc, char** argv) {
  using namespace ddprun::agent::warden;
  if (!socket_is_there()) {
    constexpr char kMessage[] =
        "ddprun-warden: this is a part of ddprun, which starts it by itself (docs/warden.md)\n";
    return write(STDERR_FILENO, kMessage, strlen(kMessage)) < 0 ? 1 : 2;
  }
  const char* cgroup = argc > 2 && *argv[2] ? argv[2] : nullptr;  // the cgroup's name
  const char* waiting = argc > 3 ? argv[3] : nullptr;
  int last = cgroup ? kCgroupFd : kSocketFd;
  if (waiting) last = kFirstWarmFd + WaitingWorkers::count(waiting) - 1;
  tidy_descriptors(last);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Only the agent ends the warden, by closing the socket, or SIGKILL.
  sigset_t all, heard;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  sigemptyset(&heard);
  sigaddset(&heard, SIGCHLD);
  for (const int number : kPassedOn) sigaddset(&heard, number);
  const int signal_fd = signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signal_fd < 0) return 1;
  Warden warden(kSocketFd, signal_fd, cgroup, waiting);
  const int status = warden.run();
  if (argc > 1 && *argv[1]) remove_directory(AT_FDCWD, argv[1]);
  return status;
}
