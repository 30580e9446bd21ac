// SPDX-License-Identifier: Apache-2.0
#include "ctl/interrupts.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "common/clock.h"
#include "common/error.h"
#include "common/socket.h"

namespace ddprun::ctl {

Interrupts::Interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    // What was to be ignored (nohup) stays so.
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;
    sigaddset(&signals, number);
  }
  fd_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw_system_error("signalfd", errno);
  ::sigprocmask(SIG_BLOCK, &signals, &before_);
}

Interrupts::~Interrupts() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

bool Interrupts::wait(std::chrono::milliseconds limit) {
  if (signal_) return true;
  if (!wait_ready(fd_.get(), POLLIN, Deadline::after(limit))) return false;
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    signal_ = static_cast<int>(info.ssi_signo);
  }
  return signal_.has_value();
}

}  // namespace ddprun::ctl
