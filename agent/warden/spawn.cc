// SPDX-License-Identifier: Apache-2.0
#include "agent/warden/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ddprun::agent::warden {
namespace {

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

// 0, or an errno value.
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

// The hard limit stays. A failure leaves the worker with a limit that is merely too high.
void limit_open_files(uint64_t soft) {
  struct rlimit limit;
  if (soft == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// 0, or -1 with errno.
int bind_to_cpus(const uint64_t (&cpus)[kCpuWords]) {
  for (const uint64_t word : cpus) {
    if (word == 0) continue;
    return static_cast<int>(syscall(SYS_sched_setaffinity, 0, sizeof cpus, cpus));
  }
  return 0;
}

// 0, or -1 with errno.
int enter(int cgroup_fd) {
  const int fd = openat(cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const bool done = write(fd, "0", 1) == 1;  // who writes
  const int error = errno;
  close(fd);
  errno = error;
  return done ? 0 : -1;
}

[[noreturn]] void run_child(const Command& command, const Request& request,
                            const int (&fds)[kNumSpawnFds], int pipe_fd, pid_t warden, pid_t agent,
                            int cgroup_to_enter) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Where Yama restricts tracing, what the agent starts may look at this worker's stack; nobody
  // else. Kept over the exec; an error elsewhere means nothing.
  prctl(PR_SET_PTRACER, static_cast<unsigned long>(agent));
  if (getppid() != warden) _exit(127);  // it died before the line above
  if (cgroup_to_enter >= 0 && enter(cgroup_to_enter) != 0) fail(pipe_fd, Stage::kCgroup);
  for (int target = 0; target < 3; ++target) dup2(fds[target + 1], target);
  limit_open_files(request.max_open_files);
  if (bind_to_cpus(request.cpus) != 0) fail(pipe_fd, Stage::kCpus);
  if (*command.directory && chdir(command.directory) != 0) fail(pipe_fd, Stage::kDirectory);
  // Handlers end with the exec, ignored signals wouldn't. The system call itself, since the C
  // library keeps two for its threads, which may be ignored all the same.
  constexpr long kDefaultAction[4] = {0, 0, 0, 0};  // the kernel's struct: SIG_DFL, nothing else
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

// As fork(). The child is born in the cgroup: moving one there later waits for all CPUs (10 ms).
// Where the kernel, or a filter of system calls, has no such call, *is_born_there is false.
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

}  // namespace

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
      // In the child of clone3 the call returned 0, too.
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

}  // namespace ddprun::agent::warden
