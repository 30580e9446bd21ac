// SPDX-License-Identifier: Apache-2.0
#include "ctl/foreground_child.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "common/child_process.h"
#include "common/environment.h"
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

}  // namespace

int run_in_foreground(const std::vector<std::string>& argv) {
  const HeldSignals signals;
  Child child;
  try {
    child = start_child({.argv = argv,
                         .environment = to_strings(current_environment()),
                         .keeps_ignored = true,
                         .blocked = signals.before});
  } catch (const StartError& error) {
    throw Error(ErrorCode::kUnavailable,
                "can't run " + argv.front() + ": " + errno_text(error.error_number()));
  }
  std::array<pollfd, 2> polled = {pollfd{child.pidfd.get(), POLLIN, 0},
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
    if (info.ssi_code != SI_KERNEL) ::kill(child.pid, static_cast<int>(info.ssi_signo));
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  return WIFSIGNALED(status) ? exit_status_for_signal(WTERMSIG(status)) : WEXITSTATUS(status);
}

}  // namespace ddprun::ctl
