// SPDX-License-Identifier: Apache-2.0
#include "launcher/standing/gang_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::launcher {
namespace {

enum class GangStage : int { kDirectory, kExec };

// What the child writes where it could not begin.
struct GangStartError {
  int error_number;
  GangStage stage;
};

// All that a child touches, made before there is one.
struct Prepared {
  char* const* argv;
  char* const* envp;
  const char* directory;
  int in, out, err, report;
  pid_t parent;
};

// Between fork and exec: system calls alone.
[[noreturn]] void begin_gang(const Prepared& what) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != what.parent) _exit(127);  // it died before the line above
  // The agent is to survive a machine that runs out of memory; the job isn't.
  const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0) {
    [[maybe_unused]] const ssize_t done = write(score, "0", 1);
    close(score);
  }
  dup2(what.in, STDIN_FILENO);
  dup2(what.out, STDOUT_FILENO);
  dup2(what.err, STDERR_FILENO);
  GangStartError error{0, GangStage::kDirectory};
  if (chdir(what.directory) == 0) {
    for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(what.argv[0], what.argv, what.envp);
    error.stage = GangStage::kExec;
  }
  error.error_number = errno;
  [[maybe_unused]] const ssize_t done = write(what.report, &error, sizeof error);
  _exit(127);
}

// A pipe whose end says that it runs.
int await_exec(int report, GangStartError& error) {
  for (;;) {
    const ssize_t size = ::read(report, &error, sizeof error);
    if (size >= 0 || errno != EINTR) return static_cast<int>(size);
  }
}

}  // namespace

std::shared_ptr<ChildProcess> start_gang(boost::asio::io_context& io, GangCommand command,
                                         std::function<void(int)> ended) {
  const std::string program = command.argv.front();
  const std::vector<char*> argv = exec_pointers(command.argv);
  const std::vector<char*> envp = exec_pointers(command.environment);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw_system_error("/dev/null", errno);
  Pipe report = make_pipe();
  const Prepared prepared{
      argv.data(),       envp.data(),       command.directory.c_str(), nothing.get(),
      command.out.get(), command.err.get(), report.write_end.get(),    ::getpid()};
  // Small, and of one thread that matters: a fork costs little, and shares nothing.
  const pid_t pid = ::fork();
  if (pid == 0) begin_gang(prepared);
  if (pid < 0) throw_system_error("fork", errno);
  report.write_end.reset();
  GangStartError error{};
  const int size = await_exec(report.read_end.get(), error);
  if (size != 0) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    const std::string what = error.stage == GangStage::kDirectory
                                 ? concat("can't enter ", command.directory)
                                 : concat("can't start ", program);
    throw Error(ErrorCode::kInvalidArgument,
                concat(what, ": ", size < 0 ? "?" : errno_text(error.error_number)));
  }
  return ChildProcess::adopt(io, pid, program, std::move(ended));
}

}  // namespace ddprun::launcher
