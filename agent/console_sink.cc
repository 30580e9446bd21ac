// SPDX-License-Identifier: Apache-2.0
#include "agent/console_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

bool is_terminal_fd(int fd) { return ::isatty(fd) == 1; }

// A pipe or terminal again, with flags of our own: O_NONBLOCK on the inherited description would
// reach every process that shares it, the user's shell included.
UniqueFd open_anew(int fd, const struct stat& original) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd anew(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info;
  if (anew && (::fstat(anew.get(), &info) != 0 || info.st_dev != original.st_dev ||
               info.st_ino != original.st_ino)) {
    anew.reset();
  }
  return anew;
}

}  // namespace

ConsoleSink::ConsoleSink(boost::asio::io_context& io, int fd, std::string name,
                         std::size_t max_pending_bytes)
    : io_(io),
      original_fd_(fd),
      name_(std::move(name)),
      max_pending_bytes_(max_pending_bytes),
      terminal_(is_terminal_fd(fd)),
      lines_(terminal_) {
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    lost_ = true;  // closed by whoever started us: nobody wants this stream
    return;
  }
  socket_ = S_ISSOCK(info.st_mode);
  if (S_ISFIFO(info.st_mode) || terminal_) {
    own_fd_ = open_anew(fd, info);
    may_block_ = !own_fd_.valid();
  }
}

int ConsoleSink::columns() const {
  winsize size{};
  return terminal_ && ::ioctl(original_fd_, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void ConsoleSink::flush() {
  std::string& ready = lines_.finish_batch(columns());
  if (lost_) {
    ready.clear();
    return;
  }
  if (written_ == pending_.size()) {
    pending_.clear();
    written_ = 0;
    pending_.swap(ready);
  } else {
    pending_.append(ready);
    ready.clear();
  }
  if (!waiting_ && write_pending() == Progress::kBlocked) wait_writable();
}

ConsoleSink::Progress ConsoleSink::write_pending() {
  while (written_ < pending_.size()) {
    const long size = write_some(pending_.data() + written_, num_pending_bytes());
    if (size >= 0) {
      written_ += static_cast<std::size_t>(size);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Progress::kBlocked;
    } else if (errno != EINTR) {
      lose(errno);
      return Progress::kLost;
    }
  }
  pending_.clear();
  written_ = 0;
  return Progress::kDone;
}

long ConsoleSink::write_some(const char* data, std::size_t size) {
  if (own_fd_) return ::write(own_fd_.get(), data, size);
  if (socket_) return ::send(original_fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (!may_block_) return ::write(original_fd_, data, size);  // a file: always ready
  pollfd ready{original_fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  constexpr std::size_t kSmall = 512;  // what poll's promise covers on any pipe or terminal
  return ::write(original_fd_, data, std::min(size, kSmall));
}

void ConsoleSink::wait_writable() {
  if (!writable_) {
    // A duplicate: the reactor wants to own what it watches.
    const int watched = ::fcntl(own_fd_ ? own_fd_.get() : original_fd_, F_DUPFD_CLOEXEC, 3);
    if (watched < 0) return lose(errno);
    boost::system::error_code error;
    writable_ = std::make_unique<boost::asio::posix::stream_descriptor>(io_);
    writable_->assign(watched, error);
    if (error) {
      ::close(watched);
      writable_.reset();
      return lose(error.value());
    }
  }
  waiting_ = true;
  writable_->async_wait(boost::asio::posix::stream_descriptor::wait_write,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          self->waiting_ = false;
                          if (error || self->lost_) return;
                          const Progress progress = self->write_pending();
                          if (progress == Progress::kBlocked) self->wait_writable();
                          if (self->num_pending_bytes() <= self->max_pending_bytes_ / 2) {
                            self->call_waiters();
                          }
                        });
}

void ConsoleSink::lose(int error_number) {
  lost_ = true;
  pending_.clear();
  written_ = 0;
  log_warning(name_, " can't be written any more (", errno_text(error_number),
              "): workers' output to it is dropped, the workers go on");
  call_waiters();
}

void ConsoleSink::when_room(std::function<void()> on_room) {
  waiters_.push_back(std::move(on_room));
  if (lost_ || !is_full()) call_waiters();
}

void ConsoleSink::call_waiters() {
  for (auto& waiter : std::exchange(waiters_, {})) boost::asio::post(io_, std::move(waiter));
}

std::size_t ConsoleSink::finish(Deadline deadline) {
  flush();
  while (!lost_ && num_pending_bytes() > 0) {
    pollfd ready{own_fd_ ? own_fd_.get() : original_fd_, POLLOUT, 0};
    if (::poll(&ready, 1, deadline.poll_timeout_ms()) == 0) break;
    write_pending();
  }
  const std::size_t dropped = num_pending_bytes();
  pending_.clear();
  written_ = 0;
  return dropped;
}

void ConsoleSink::close() {
  lost_ = true;
  pending_.clear();
  written_ = 0;
  waiters_.clear();
  writable_.reset();
}

}  // namespace ddprun::agent
