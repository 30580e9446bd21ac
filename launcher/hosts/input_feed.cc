// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/input_feed.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
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
#include "common/standard_streams.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

// A pipe or terminal again, with flags of our own (agent/console_sink.cc has the reason). Of a
// socket there is none.
UniqueFd open_anew(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

InputFeed::InputFeed(boost::asio::io_context& io, int fd, std::size_t num_nodes,
                     std::function<void(int, std::string)> send)
    : original_fd_(fd), io_(io), input_(io), flow_(num_nodes), send_(std::move(send)) {
  open();
}

void InputFeed::open() {
  struct stat info {};
  ended_ = ::fstat(original_fd_, &info) != 0;
  is_terminal_ = ::isatty(original_fd_) == 1;
  if (is_terminal_) {
    ::signal(SIGTTIN, SIG_IGN);  // a read that comes too late for a change fails, and stops nobody
    ended_ = is_in_background();
  } else if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) {
    return;  // read as it is: there is nothing to wait for
  }
  UniqueFd own = open_anew(original_fd_);
  may_block_ = !own;
  if (!own) own.reset(::fcntl(original_fd_, F_DUPFD_CLOEXEC, 0));
  if (!own) throw_system_error("standard input: fcntl(F_DUPFD_CLOEXEC)", errno);
  input_.assign(own.release());
}

bool InputFeed::is_in_background() const { return is_terminal_ && !is_in_foreground(original_fd_); }

void InputFeed::has_room(int node, const channel::Room& room) {
  flow_.has_room(node, room);
  if (!room.has_rank_0 || !ended_) return pump();
  send_(node, {});
}

void InputFeed::pump() {
  if (busy_ || ended_ || flow_.room() == 0 || is_in_background()) return;  // until continued()
  const ssize_t size = take(std::min(flow_.room(), buffer_.size()));
  if (size > 0) {
    flow_.sent(static_cast<std::size_t>(size));
    send_(flow_.node(), std::string(buffer_.data(), static_cast<std::size_t>(size)));
    busy_ = true;  // others have their turn meanwhile
    return boost::asio::post(io_, [this] {
      busy_ = false;
      pump();
    });
  }
  if (size < 0 && errno == EINTR) return pump();
  if (size < 0 && errno == EAGAIN) {
    busy_ = true;
    return input_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                             [this](const boost::system::error_code& error) {
                               busy_ = false;
                               if (!error) pump();
                             });
  }
  if (size < 0 && errno == EIO && is_in_background()) return;  // since this moment
  if (size < 0) log_warning("standard input: ", errno_text(errno), "; rank 0 gets no more of it");
  ended_ = true;
  boost::system::error_code ignored;
  input_.close(ignored);
  send_(flow_.node(), {});
}

// −1 with EAGAIN: nothing is there yet.
ssize_t InputFeed::take(std::size_t most_bytes) {
  const int fd = input_.is_open() ? input_.native_handle() : original_fd_;
  if (may_block_) {
    const ssize_t size = ::recv(fd, buffer_.data(), most_bytes, MSG_DONTWAIT);
    if (size >= 0 || errno != ENOTSOCK) return size;
    if (!is_ready(fd, POLLIN)) {
      errno = EAGAIN;
      return -1;
    }
  }
  return ::read(fd, buffer_.data(), most_bytes);
}

}  // namespace ddprun::launcher
