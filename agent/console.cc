// SPDX-License-Identifier: Apache-2.0
#include "agent/console.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "agent/output/log_writer.h"
#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

// The user is told when a reader has taken nothing for so long.
constexpr std::chrono::seconds kPatience{5};

// Opens a pipe or terminal again, with its own flags. O_NONBLOCK on the inherited description would
// reach every process that shares it, also the user's shell.
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

bool is_same_file(int a, int b) {
  struct stat info_a, info_b;
  return ::fstat(a, &info_a) == 0 && ::fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
         info_a.st_ino == info_b.st_ino;
}

bool is_wanted(const char* no_color, const char* term) {
  return std::string_view(no_color ? no_color : "").empty() &&
         std::string_view(term ? term : "") != "dumb";
}

}  // namespace

// One file to which workers' output is written, without ever blocking. io thread only.
class ConsoleSink : public std::enable_shared_from_this<ConsoleSink> {
 public:
  // `name`: for messages, "stdout".
  ConsoleSink(boost::asio::io_context& io, int fd, const char* name, ConsoleOptions options);

  bool is_terminal() const { return terminal_; }
  LineMux& lines() { return lines_; }

  // Writes what the lines hold now, and the rest when the reader takes it.
  void flush();
  bool is_full() const { return options_.slow_reader == SlowReader::kBlock && is_behind(); }
  void when_room(std::function<void()> on_room);

  // Returns one text on the bytes that did not reach the reader. Empty: there are none.
  std::string losses() const;

  // See Console::finish.
  std::size_t finish(Deadline deadline);
  // Drops what is pending, and the callbacks of those who wait; nothing is written any more.
  void close();

 private:
  std::size_t num_pending_bytes() const { return pending_.size() - written_; }
  enum class Progress { kDone, kBlocked, kLost };
  Progress write_pending();
  long write_some(const char* data, std::size_t size);
  void wait_writable();
  bool is_behind() const { return num_pending_bytes() > options_.max_pending_bytes; }
  void lose(int error_number);
  bool lose_some(int error_number);
  void call_waiters();
  void follow_reader();
  void say_that_workers_wait();
  void arm_wake();
  int columns() const;

  boost::asio::io_context& io_;
  const int original_fd_;
  const std::string name_;
  const ConsoleOptions options_;
  bool terminal_ = false;
  bool socket_ = false;
  bool may_block_ = false;  // it could not be opened anew: small writes when poll() allows them
  UniqueFd own_fd_;         // opened anew, non-blocking

  LineMux lines_;
  std::string pending_;
  std::size_t written_ = 0;  // how much of pending_ is written
  bool waiting_ = false;
  bool lost_ = false;
  bool full_disk_said_ = false;
  bool dropping_said_ = false;
  std::uint64_t num_unwritten_bytes_ = 0;         // the disk had no space for them
  std::optional<Clock::time_point> full_since_;   // since when workers wait for the reader
  std::chrono::nanoseconds waited_{0};            // how long they waited before that
  boost::asio::steady_timer wake_timer_;          // for the time-outs of lines_
  std::optional<Clock::time_point> wake_set_to_;  // set: the timer is under way
  boost::asio::steady_timer patience_;            // after it the user is told that workers wait
  std::unique_ptr<boost::asio::posix::stream_descriptor> writable_;  // made at the first wait
  std::vector<std::function<void()>> waiters_;
};

ConsoleSink::ConsoleSink(boost::asio::io_context& io, int fd, const char* name,
                         ConsoleOptions options)
    : io_(io),
      original_fd_(fd),
      name_(name),
      options_(std::move(options)),
      terminal_(::isatty(fd) == 1),
      lines_(terminal_),
      wake_timer_(io),
      patience_(io) {
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    lost_ = true;  // whoever started ddprun has closed it: the stream isn't wanted
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
    // Frees the taken part now: a slow reader that never stands still would let it grow for ever.
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

// Called when the number of pending bytes has changed.
void ConsoleSink::follow_reader() {
  if (options_.slow_reader == SlowReader::kDrop) {
    const bool behind = is_behind();
    if (behind) lines_.set_dropping(true);
    if (num_pending_bytes() <= options_.max_pending_bytes / 2) lines_.set_dropping(false);
    if (behind && !std::exchange(dropping_said_, true) && options_.notice) {
      options_.notice(name_ +
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
  run_after(patience_, kPatience, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->full_since_ || self->lost_ || !self->options_.notice) return;
    self->options_.notice(concat("nobody has read ", self->name_, " for ", kPatience.count(),
                                 " s: workers that write to it wait (--slow-reader=drop lets them "
                                 "go on)"));
  });
}

// Sets the timer for what the lines hold. It is not set again with every line: a wake-up that comes
// too early sets it again.
void ConsoleSink::arm_wake() {
  const auto at = lines_.wake_at();
  if (!at || (wake_set_to_ && *wake_set_to_ <= *at)) return;
  wake_set_to_ = at;
  run_at(wake_timer_, *at, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->lost_) return;
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
    return concat(counted(lines_.num_dropped_lines(), "line"), " (", lines_.num_dropped_bytes(),
                  " bytes) of the workers' output left out on ", name_,
                  ", which was read too slowly (--slow-reader=drop)");
  }
  if (num_unwritten_bytes_ > 0) {
    return concat(num_unwritten_bytes_, " bytes of the workers' output could not be written to ",
                  name_, ": its disk was full");
  }
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(waited_).count();
  if (waited < kPatience.count()) return "";
  return concat("workers that wrote to ", name_, " waited ", waited,
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
  // So many bytes fit into any pipe or terminal that poll() calls ready.
  constexpr std::size_t kSmall = 512;
  return ::write(original_fd_, data, std::min(size, kSmall));
}

void ConsoleSink::wait_writable() {
  if (!writable_) {
    // Watches a duplicate: the reactor owns what it watches.
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
  log_warning(name_, " can't be written any more (", errno_text(error_number),
              "): workers' output to it is dropped, the workers go on");
  follow_reader();
  call_waiters();
}

// Drops only what can't be written now, since a full disk may have room again later.
bool ConsoleSink::lose_some(int error_number) {
  if (error_number != ENOSPC && error_number != EDQUOT) return false;
  num_unwritten_bytes_ += num_pending_bytes();
  written_ = pending_.size();
  if (!std::exchange(full_disk_said_, true) && options_.notice) {
    boost::asio::post(io_, [notice = options_.notice, name = name_, error_number] {
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

Console::Console(boost::asio::io_context& io, ConsoleOptions options)
    : options_(std::move(options)), stdin_is_ours_(is_in_foreground(options_.stdin_fd)) {
  ::signal(SIGPIPE, SIG_IGN);
  stdout_ = std::make_shared<ConsoleSink>(io, options_.stdout_fd, "stdout", options_);
  if (!is_same_file(options_.stdout_fd, options_.stderr_fd)) {
    stderr_ = std::make_shared<ConsoleSink>(io, options_.stderr_fd, "stderr", options_);
  }
  log_writer_ = std::make_shared<LogWriter>(io, options_.notice);
}

Console::~Console() {
  stdout_->close();
  if (stderr_) stderr_->close();
  log_writer_->close();
}

ConsoleSink& Console::sink(OutputStream stream) const {
  return stream == OutputStream::kStderr && stderr_ ? *stderr_ : *stdout_;
}

int Console::fd(OutputStream stream) const {
  return stream == OutputStream::kStdout ? options_.stdout_fd : options_.stderr_fd;
}

bool Console::is_terminal(OutputStream stream) const { return sink(stream).is_terminal(); }

bool Console::has_colours(OutputStream stream) const {
  return is_terminal(stream) && is_wanted(std::getenv("NO_COLOR"), std::getenv("TERM"));
}

LineMux& Console::lines(OutputStream stream) { return sink(stream).lines(); }
void Console::flush(OutputStream stream) { sink(stream).flush(); }
bool Console::is_full(OutputStream stream) const { return sink(stream).is_full(); }

bool Console::must_wait(OutputStream stream, const LineSource& source) const {
  return is_full(stream) || sink(stream).lines().must_wait(source);
}

void Console::when_room(OutputStream stream, std::function<void()> on_room) {
  sink(stream).when_room(std::move(on_room));
}

bool Console::finish_files(Deadline deadline) { return log_writer_->finish(deadline); }

std::vector<std::string> Console::losses() const {
  std::vector<std::string> texts;
  for (const ConsoleSink* each : {stdout_.get(), stderr_.get()}) {
    if (std::string text = each ? each->losses() : ""; !text.empty()) texts.push_back(text);
  }
  for (std::string& text : log_writer_->losses()) texts.push_back(std::move(text));
  return texts;
}

std::size_t Console::finish(Deadline deadline) {
  const std::size_t dropped = stdout_->finish(deadline);
  return dropped + (stderr_ ? stderr_->finish(deadline) : 0);
}

}  // namespace ddprun::agent
