// SPDX-License-Identifier: Apache-2.0
#include "ctl/foreground_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "common/child_pidfd.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/unique_fd.h"

namespace ddprun::ctl {
namespace {

// While one exists those signals wait in `fd`. They stay so: what comes after the child's end is
// for nobody.
struct HeldSignals {
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&held, number);
    fd.reset(::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd) throw_system_error("signalfd", errno);
    ::sigprocmask(SIG_BLOCK, &held, &before);
  }
  UniqueFd fd;
  sigset_t before{};
};

// The child's errno where it could not become the program, else nothing comes before the end.
[[noreturn]] void become(std::vector<char*>& argv, const sigset_t& mask, int say) {
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv(argv.front(), argv.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(say, &error, sizeof error);
  ::_exit(kExitNotFound);
}

}  // namespace

int run_in_foreground(std::vector<std::string> argv) {
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe", errno);
  const UniqueFd told(ends[0]);
  UniqueFd say(ends[1]);
  const HeldSignals signals;
  const pid_t child = ::fork();
  if (child < 0) throw_system_error("fork", errno);
  if (child == 0) become(words, signals.before, say.get());
  say.reset();
  const UniqueFd ended = open_child_pidfd(child, argv.front());
  if (int error = 0; ::read(told.get(), &error, sizeof error) == sizeof error) {
    ::waitpid(child, nullptr, 0);
    throw Error(ErrorCode::kUnavailable, "can't run " + argv.front() + ": " + errno_text(error));
  }
  std::array<pollfd, 2> polled = {pollfd{ended.get(), POLLIN, 0},
                                  pollfd{signals.fd.get(), POLLIN, 0}};
  while (polled[0].revents == 0) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      throw_system_error("poll", errno);
    }
    signalfd_siginfo info{};
    if (polled[1].revents == 0 ||
        ::read(signals.fd.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) {
      continue;
    }
    // The terminal's, which the kernel sends, have reached the child, too.
    if (info.ssi_code != SI_KERNEL) ::kill(child, static_cast<int>(info.ssi_signo));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? exit_status_for_signal(WTERMSIG(status)) : WEXITSTATUS(status);
}

}  // namespace ddprun::ctl
