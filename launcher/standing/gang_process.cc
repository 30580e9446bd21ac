// SPDX-License-Identifier: Apache-2.0
#include "launcher/standing/gang_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::launcher {

namespace asio = boost::asio;

namespace {

// Until it is executed. A directory can be on a file system that never answers.
constexpr std::chrono::seconds kStartLimit{10};

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

// Between fork and exec: system calls alone. All signals are blocked.
[[noreturn]] void begin_gang(const Prepared& what) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != what.parent) _exit(127);  // it died before the line above
  // Before what may take its time: a handler of the agent's would write to the agent's own pipe.
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
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
    execve(what.argv[0], what.argv, what.envp);
    error.stage = GangStage::kExec;
  }
  error.error_number = errno;
  [[maybe_unused]] const ssize_t done = write(what.report, &error, sizeof error);
  _exit(127);
}

// Small, and of one thread that matters: a fork costs little, and shares nothing.
pid_t fork_gang(const Prepared& what) {
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  const pid_t pid = ::fork();
  if (pid == 0) begin_gang(what);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw_system_error("fork", error);
  return pid;
}

}  // namespace

std::shared_ptr<GangProcess> GangProcess::start(asio::io_context& io, GangCommand command,
                                                Handlers handlers) {
  const std::vector<char*> argv = exec_pointers(command.argv);
  const std::vector<char*> envp = exec_pointers(command.environment);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) throw_system_error("/dev/null", errno);
  Pipe report = make_pipe();
  std::shared_ptr<GangProcess> gang(
      new GangProcess(io, command, std::move(handlers), std::move(report.read_end)));
  const pid_t pid =
      fork_gang({argv.data(), envp.data(), command.directory.c_str(), nothing.get(),
                 command.out.get(), command.err.get(), report.write_end.get(), ::getpid()});
  gang->child_ =
      ChildProcess::adopt(io, pid, gang->program_, [weak = std::weak_ptr(gang)](int wait_status) {
        if (const auto self = weak.lock()) self->end(wait_status);
      });
  gang->await_report();
  gang->limit_.expires_after(kStartLimit);
  gang->limit_.async_wait([gang](boost::system::error_code error) {
    if (!error) gang->give_up();
  });
  return gang;
}

GangProcess::GangProcess(asio::io_context& io, const GangCommand& command, Handlers handlers,
                         UniqueFd report)
    : program_(command.argv.front()),
      directory_(command.directory),
      handlers_(std::move(handlers)),
      report_(io, report.release()),
      limit_(io) {
  report_.non_blocking(true);
}

void GangProcess::await_report() {
  report_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](boost::system::error_code error) {
                       if (!error) self->take_report();
                     });
}

// The pipe's end without a word says that it is executed, or was killed before.
void GangProcess::take_report() {
  GangStartError error{};
  const ssize_t size = ::read(report_.native_handle(), &error, sizeof error);
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return await_report();
  boost::system::error_code ignored;
  report_.close(ignored);
  limit_.cancel();
  if (size == sizeof error) {
    why_ = concat(error.stage == GangStage::kDirectory ? "can't enter " : "can't start ",
                  error.stage == GangStage::kDirectory ? directory_ : program_, ": ",
                  errno_text(error.error_number));
  } else if (handlers_.began) {
    std::exchange(handlers_.began, nullptr)();
  }
}

// At once: where the file system holds the child, SIGKILL doesn't end it either.
void GangProcess::give_up() {
  boost::system::error_code ignored;
  report_.close(ignored);
  why_ = concat("can't enter ", directory_, ": no answer within ", kStartLimit.count(), " s");
  signal(SIGKILL);
  end(0);
}

void GangProcess::end(int wait_status) {
  if (!handlers_.ended) return;
  if (report_.is_open()) take_report();  // written before it ended
  handlers_.began = nullptr;
  std::exchange(handlers_.ended, nullptr)(wait_status, why_);
}

}  // namespace ddprun::launcher
