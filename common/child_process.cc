// SPDX-License-Identifier: Apache-2.0
// Uses vfork(2) or fork(2), since posix_spawn(3) doesn't support PR_SET_PDEATHSIG.
#include "common/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ddprun {
namespace {

// ThreadSanitizer turns vfork into fork, so the report comes after the call has returned.
#if defined(__SANITIZE_THREAD__)
constexpr int kReportFlags = 0;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr int kReportFlags = 0;
#else
constexpr int kReportFlags = O_NONBLOCK;
#endif
#else
// Reads without blocking: another thread's child may hold the other end, which nobody may wait for.
constexpr int kReportFlags = O_NONBLOCK;
#endif

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

// All that the child uses. It is prepared before the child exists.
struct Prepared {
  explicit Prepared(const ChildCommand& given)
      : command(given),
        program(given.program.empty() ? given.argv.front().c_str() : given.program.c_str()),
        argv(pointers(given.argv)),
        envp(pointers(given.environment)),
        descriptors(given.descriptors) {}

  const ChildCommand& command;
  const char* program;
  std::vector<char*> argv, envp;
  std::vector<int> descriptors;  // the child may change them
  pid_t parent = ::getpid();
};

// Uses the system call itself, since the C library hides two signals that may be ignored, too.
void reset_signals(bool keeps_ignored) {
  constexpr long kIgnored = 1;
  constexpr long kDefaultAction[4] = {0, 0, 0, 0};  // the kernel's struct: SIG_DFL and nothing else
  constexpr std::size_t kMaskBytes = 8;
  for (int number = 1; number <= 64; ++number) {
    long now[4] = {0, 0, 0, 0};
    ::syscall(SYS_rt_sigaction, number, nullptr, now, kMaskBytes);
    if (keeps_ignored && now[0] == kIgnored) continue;
    ::syscall(SYS_rt_sigaction, number, kDefaultAction, nullptr, kMaskBytes);
  }
}

// Places the descriptors. False: errno says why.
bool place_descriptors(std::vector<int>& descriptors, int& report) {
  // Moves them away from their target numbers first, so that none is overwritten.
  const int num_targets = static_cast<int>(descriptors.size());
  const auto move_away = [num_targets](int& fd) {
    if (fd >= 0 && fd < num_targets) fd = ::fcntl(fd, F_DUPFD_CLOEXEC, num_targets);
    return fd >= 0;
  };
  if (!move_away(report)) return false;
  for (int& fd : descriptors) {
    if (fd == ChildCommand::kSame) continue;
    if (fd == ChildCommand::kNothing) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (!move_away(fd)) return false;
  }
  for (int target = 0; target < num_targets; ++target) {
    if (descriptors[target] >= 0 && ::dup2(descriptors[target], target) < 0) return false;
  }
  return true;
}

// Uses only system calls: the child may share the parent's memory. All signals are blocked.
[[noreturn]] void become_program(Prepared& what, int report) {
  const ChildCommand& command = what.command;
  if (command.own_session) ::setsid();
  if (command.dies_with_us) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != what.parent) ::_exit(127);  // the parent died before the line above
  }
  // Signals are reset before the steps that may block, so that SIGTERM ends a child that is blocked
  // there.
  reset_signals(command.keeps_ignored);
  ::sigprocmask(SIG_SETMASK, &command.blocked, nullptr);
  const int score =
      command.plain_oom_score ? ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC) : -1;
  if (score >= 0) {
    [[maybe_unused]] const ssize_t done = ::write(score, "0", 1);
    ::close(score);
  }
  StartFailure failure;
  if (!command.directory.empty() && ::chdir(command.directory.c_str()) != 0) {
    failure.is_of_directory = true;
  } else if (place_descriptors(what.descriptors, report)) {
    if (command.kept_descriptor >= 0) ::fcntl(command.kept_descriptor, F_SETFD, 0);
    // A file that is no program must not be run by a shell, except where PATH finds it.
    const auto execute = std::strchr(what.program, '/') ? ::execve : ::execvpe;
    execute(what.program, what.argv.data(), what.envp.data());
  }
  failure.error_number = errno;
  [[maybe_unused]] const ssize_t done = ::write(report, &failure, sizeof failure);
  ::_exit(127);
}

[[noreturn]] void throw_start_error(const Prepared& what, int number) {
  const std::string& directory = what.command.directory;
  const std::string place = directory.empty() ? "" : " in " + directory;
  throw StartError(std::string("can't start ") + what.program + place + ": " + errno_text(number),
                   number);
}

// Starts the child. If it shares this process' memory, this thread waits until it is executed.
pid_t make_child(Prepared& what, int report, bool shares_memory) {
  // All signals are blocked, so that this program's handlers don't run in the child.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = shares_memory ? ::vfork() : ::fork();
  if (pid == 0) become_program(what, report);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw_start_error(what, error);
  return pid;
}

std::vector<pid_t>& pids() {
  static std::vector<pid_t> all;
  return all;
}

}  // namespace

Child start_child(const ChildCommand& command) {
  Prepared what(command);
  Pipe report = make_pipe(kReportFlags);
  const pid_t pid = make_child(what, report.write_end.get(), true);
  report.write_end.reset();
  StartFailure failure;
  if (::read(report.read_end.get(), &failure, sizeof failure) == sizeof failure) {
    ::waitpid(pid, nullptr, 0);
    throw_start_error(what, failure.error_number);
  }
  return {pid, open_child_pidfd(pid, what.program)};
}

Child start_child_apart(const ChildCommand& command, int report) {
  Prepared what(command);
  const pid_t pid = make_child(what, report, false);
  return {pid, open_child_pidfd(pid, what.program)};
}

UniqueFd open_child_pidfd(pid_t child, const std::string& program) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (pidfd) return pidfd;
  const int error = errno;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  throw_system_error("pidfd_open for " + program + " (Linux 5.3 or newer is needed)", error);
}

Pipe make_pipe(int more_flags) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | more_flags) != 0) throw_system_error("pipe2", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::pair<UniqueFd, UniqueFd> make_socket_pair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_system_error("socketpair", errno);
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

HelperProcess::HelperProcess(pid_t pid) : pid_(pid) { pids().push_back(pid); }

HelperProcess::~HelperProcess() { pids().erase(std::find(pids().begin(), pids().end(), pid_)); }

const std::vector<pid_t>& helper_processes() { return pids(); }

bool is_helper_process(pid_t pid) {
  return std::find(pids().begin(), pids().end(), pid) != pids().end();
}

}  // namespace ddprun
