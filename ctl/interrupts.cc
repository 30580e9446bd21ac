// SPDX-License-Identifier: Apache-2.0
#include "ctl/interrupts.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/signal_names.h"
#include "common/socket.h"

namespace ddprun::ctl {

namespace {
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Of the call that is cut off: all that a signal handler may look at.
const std::string* words_of_call = nullptr;

void end_with_words(int number) {
  if (!words_of_call->empty()) {
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, words_of_call->data(), words_of_call->size());
  }
  ::_exit(exit_status_for_signal(number));
}
}  // namespace

Interrupts::Interrupts(std::string last_words) : last_words_(std::move(last_words)) {
  sigemptyset(&kept_);
  for (const int number : kSignals) {
    if (!is_ignored(number)) sigaddset(&kept_, number);
  }
  fd_.reset(::signalfd(-1, &kept_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw_system_error("signalfd", errno);
  ::sigprocmask(SIG_BLOCK, &kept_, &before_);
}

Interrupts::~Interrupts() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

void Interrupts::end_in(const std::function<void()>& call) const {
  struct Open {
    explicit Open(const sigset_t& kept) : signals(kept) {
      struct sigaction ends {};
      ends.sa_handler = &end_with_words;
      for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        if (sigismember(&signals, kSignals[i]) == 1) ::sigaction(kSignals[i], &ends, &before[i]);
      }
      ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
    }
    ~Open() {
      ::sigprocmask(SIG_BLOCK, &signals, nullptr);
      for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        if (sigismember(&signals, kSignals[i]) == 1) ::sigaction(kSignals[i], &before[i], nullptr);
      }
    }
    const sigset_t& signals;
    struct sigaction before[std::size(kSignals)]{};
  };
  words_of_call = &last_words_;
  const Open open(kept_);
  call();
}

bool Interrupts::wait(std::chrono::milliseconds limit) {
  if (signal_) return true;
  if (wait_ready(fd_.get(), POLLIN, Deadline::after(limit))) take();
  return signal_.has_value();
}

short Interrupts::wait_with(int fd, short events, Deadline deadline) {
  if (signal_) return 0;
  std::array<pollfd, 2> polled = {pollfd{fd_.get(), POLLIN, 0}, pollfd{fd, events, 0}};
  while (::poll(polled.data(), polled.size(), deadline.poll_timeout_ms()) < 0) {
    if (errno != EINTR) throw_system_error("poll", errno);
  }
  if (polled[0].revents != 0) take();
  return polled[1].revents;
}

void Interrupts::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    signal_ = static_cast<int>(info.ssi_signo);
  }
}

}  // namespace ddprun::ctl
