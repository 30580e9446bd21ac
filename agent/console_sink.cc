// SPDX-License-Identifier: Apache-2.0
#include "agent/console_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"

namespace ddprun::agent {
namespace {

// A reader that takes nothing for so long is mentioned.
constexpr std::chrono::seconds kPatience{5};

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

ConsoleSink::ConsoleSink(boost::asio::io_context& io, int fd, ConsoleSinkOptions options)
    : io_(io),
      original_fd_(fd),
      options_(std::move(options)),
      terminal_(is_terminal_fd(fd)),
      lines_(terminal_),
      wake_timer_(io),
      patience_(io) {
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
    // A reader that is slow but never stands still would let the taken part grow for ever.
    if (written_ > num_pending_bytes()) {
      pending_.erase(0, written_);
      written_ = 0;
    }
    pending_.append(ready);
    ready.clear();
  }
  if (!waiting_ && write_pending() == Progress::kBlocked) wait_writable();
  follow_reader();
  arm_wake();
  if (lines_.take_released() && !is_full()) call_waiters();
}

// How far the reader is behind has changed.
void ConsoleSink::follow_reader() {
  if (options_.slow_reader == SlowReader::kDrop) {
    const bool behind = is_behind();
    if (behind) lines_.set_dropping(true);
    if (num_pending_bytes() <= options_.max_pending_bytes / 2) lines_.set_dropping(false);
    if (behind && !std::exchange(dropping_said_, true) && options_.notice) {
      options_.notice(options_.name +
                      " is read more slowly than the workers write: lines are left out "
                      "(--slow-reader=drop), and counted at the end");
    }
    return;
  }
  if (is_behind() && !full_since_) {
    full_since_ = Clock::now();
    say_that_workers_wait();
  } else if (full_since_ && num_pending_bytes() <= options_.max_pending_bytes / 2) {
    waited_ += Clock::now() - *std::exchange(full_since_, std::nullopt);
    lines_.postpone(Clock::now());
    patience_.cancel();
  }
}

void ConsoleSink::say_that_workers_wait() {
  patience_.expires_after(kPatience);
  patience_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || !self->full_since_ || self->lost_ || !self->options_.notice) return;
    self->options_.notice(concat("nobody has read ", self->options_.name, " for ",
                                 kPatience.count(),
                                 " s: workers that write to it wait (--slow-reader=drop lets them "
                                 "go on)"));
  });
}

// The timer of what the lines hold. It is set once, not with every line: a wake too early sets it
// again.
void ConsoleSink::arm_wake() {
  const auto at = lines_.wake_at();
  if (!at || (wake_set_to_ && *wake_set_to_ <= *at)) return;
  wake_set_to_ = at;
  wake_timer_.expires_at(*at);
  wake_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->lost_) return;
    self->wake_set_to_.reset();
    if (self->is_full()) {
      self->lines_.postpone(Clock::now());
    } else {
      self->lines_.wake(Clock::now());
    }
    self->flush();
  });
}

std::string ConsoleSink::losses() const {
  if (lines_.num_dropped_bytes() > 0) {
    return concat(lines_.num_dropped_lines(), " lines (", lines_.num_dropped_bytes(),
                  " bytes) of the workers' output were left out on ", options_.name,
                  ", which was read too slowly (--slow-reader=drop)");
  }
  if (num_unwritten_bytes_ > 0) {
    return concat(num_unwritten_bytes_, " bytes of the workers' output could not be written to ",
                  options_.name, ": its disk was full");
  }
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(waited_).count();
  if (waited < kPatience.count()) return "";
  return concat("workers that wrote to ", options_.name, " waited ", waited,
                " s for its reader in all (--slow-reader=drop lets them go on)");
}

ConsoleSink::Progress ConsoleSink::write_pending() {
  while (written_ < pending_.size()) {
    const long size = write_some(pending_.data() + written_, num_pending_bytes());
    if (size >= 0) {
      written_ += static_cast<std::size_t>(size);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Progress::kBlocked;
    } else if (errno != EINTR && !lose_some(errno)) {
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
  if (!is_ready(original_fd_, POLLOUT)) {
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
                          self->follow_reader();
                          if (self->num_pending_bytes() <= self->options_.max_pending_bytes / 2) {
                            self->call_waiters();
                          }
                        });
}

void ConsoleSink::lose(int error_number) {
  lost_ = true;
  pending_.clear();
  written_ = 0;
  log_warning(options_.name, " can't be written any more (", errno_text(error_number),
              "): workers' output to it is dropped, the workers go on");
  follow_reader();
  call_waiters();
}

// A full disk may have room again: only what can't be written now is lost.
bool ConsoleSink::lose_some(int error_number) {
  if (error_number != ENOSPC && error_number != EDQUOT) return false;
  num_unwritten_bytes_ += num_pending_bytes();
  written_ = pending_.size();
  if (!std::exchange(full_disk_said_, true) && options_.notice) {
    boost::asio::post(io_, [notice = options_.notice, name = options_.name, error_number] {
      notice(concat(name, " can't be written (", errno_text(error_number),
                    "): what workers write to it is lost until there is room again"));
    });
  }
  return true;
}

void ConsoleSink::when_room(std::function<void()> on_room) {
  waiters_.push_back(std::move(on_room));
  if (lost_) call_waiters();
}

void ConsoleSink::call_waiters() {
  for (auto& waiter : std::exchange(waiters_, {})) boost::asio::post(io_, std::move(waiter));
}

std::size_t ConsoleSink::finish(Deadline deadline) {
  flush();
  while (!lost_ && num_pending_bytes() > 0) {
    if (!wait_ready(own_fd_ ? own_fd_.get() : original_fd_, POLLOUT, deadline)) break;
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
  wake_timer_.cancel();
  patience_.cancel();
}

}  // namespace ddprun::agent
