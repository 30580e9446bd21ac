// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "common/unique_fd.h"
#include "ctl/top/screen.h"

namespace ddprun::top {
namespace {

constexpr std::chrono::milliseconds kFarewell{500};

// A background process that sets a terminal's modes would be stopped in the midst of its end.
class NotStopped {
 public:
  NotStopped() {
    sigset_t output{};
    sigemptyset(&output);
    sigaddset(&output, SIGTTOU);
    ::pthread_sigmask(SIG_BLOCK, &output, &before_);
  }
  ~NotStopped() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NotStopped(const NotStopped&) = delete;
  NotStopped& operator=(const NotStopped&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

struct Terminal::Opened {
  Opened(int in, int out)
      : shared{in, out},
        flags{::fcntl(in, F_GETFL), ::fcntl(out, F_GETFL)},
        own_in(again(in, O_RDONLY)),
        own_out(again(out, O_WRONLY)) {}
  ~Opened() {
    // Where there was none of its own: as it was.
    if (is_shared) {
      ::fcntl(shared[0], F_SETFL, flags[0]);
      ::fcntl(shared[1], F_SETFL, flags[1]);
    }
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  UniqueFd again(int fd, int mode) {
    const std::string path = concat("/proc/self/fd/", fd);
    UniqueFd own(::open(path.c_str(), mode | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    if (own) return own;
    // Another user's terminal, as after su.
    is_shared = true;
    own.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!own) throw_system_error("can't use the terminal", errno);
    return own;
  }

  const int shared[2], flags[2];
  bool is_shared = false;
  UniqueFd own_in, own_out;
};

Terminal::Terminal(boost::asio::io_context& io, int in, int out, Handlers handlers)
    : handlers_(std::move(handlers)),
      opened_(std::make_unique<Opened>(in, out)),
      in_fd_(opened_->own_in.get()),
      out_fd_(opened_->own_out.get()),
      in_(io, opened_->own_in.release()),
      out_(io, opened_->own_out.release()) {
  if (::tcgetattr(in_fd_, &before_) != 0) {
    throw_system_error("can't use the terminal", errno);
  }
}

Terminal::~Terminal() { leave(); }

void Terminal::enter() {
  if (std::exchange(is_entered_, true)) return;
  ::tcgetattr(in_fd_, &before_);  // the shell may have set them meanwhile
  termios now = before_;
  // ^C and ^Z stay signals; ^S must not freeze it, and ^\ has no time to put it right.
  now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
  now.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL | INLCR);
  now.c_cc[VMIN] = 1;
  now.c_cc[VTIME] = 0;
  now.c_cc[VQUIT] = _POSIX_VDISABLE;
  if (::tcsetattr(in_fd_, TCSANOW, &now) != 0) {
    is_entered_ = false;
    throw_system_error("can't use the terminal", errno);
  }
  write(Screen::entered());
  if (!std::exchange(is_reading_, true)) read_next();
}

void Terminal::leave() {
  if (!std::exchange(is_entered_, false)) return;
  const NotStopped guard;
  boost::system::error_code ignored;
  out_.cancel(ignored);
  ++era_;
  std::string last = outgoing_.substr(std::exchange(num_written_, 0));
  outgoing_.clear();
  last += Screen::left();
  write_blocking(last);
  ::tcsetattr(in_fd_, TCSANOW, &before_);
}

Terminal::Size Terminal::size() const {
  winsize size{};
  if (::ioctl(out_fd_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

void Terminal::read_next() {
  in_.async_read_some(boost::asio::buffer(typed_),
                      [this](boost::system::error_code error, std::size_t num_bytes) {
                        if (error == boost::asio::error::operation_aborted) return;
                        if (error == boost::asio::error::interrupted) return read_next();
                        if (error) return handlers_.gone();
                        handlers_.typed(std::string_view(typed_, num_bytes));
                        read_next();
                      });
}

void Terminal::write(std::string text) {
  if (text.empty()) return;
  outgoing_ = std::move(text);
  num_written_ = 0;
  write_next();
}

void Terminal::write_next() {
  out_.async_write_some(
      boost::asio::buffer(outgoing_.data() + num_written_, outgoing_.size() - num_written_),
      [this, era = era_](boost::system::error_code error, std::size_t num_bytes) {
        if (error == boost::asio::error::operation_aborted || era != era_) return;
        if (error && error != boost::asio::error::interrupted) return handlers_.gone();
        num_written_ += num_bytes;
        if (num_written_ < outgoing_.size()) return write_next();
        outgoing_.clear();
        num_written_ = 0;
        handlers_.drained();
      });
}

void Terminal::write_blocking(std::string_view text) {
  const Deadline deadline = Deadline::after(kFarewell);
  while (!text.empty()) {
    const ssize_t size = ::write(out_fd_, text.data(), text.size());
    if (size > 0) {
      text.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      if (!wait_ready(out_fd_, POLLOUT, deadline)) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace ddprun::top
