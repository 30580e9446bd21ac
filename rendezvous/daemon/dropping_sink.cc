// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/dropping_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

namespace ddprun::rendezvous {

DroppingSink::DroppingSink(int fd) : fd_(fd), max_line_bytes_(::isatty(fd) == 1 ? 512 : PIPE_BUF) {}

void DroppingSink::sink_it_(const spdlog::details::log_msg& message) {
  if (num_dropped_ > 0) {
    const std::string text =
        std::to_string(num_dropped_) + " line(s) of this log were dropped: nobody took them";
    if (!write_now({message.time, {}, message.logger_name, spdlog::level::warn, text})) {
      ++num_dropped_;
      return;
    }
    num_dropped_ = 0;
  }
  if (!write_now(message)) ++num_dropped_;
}

// True where the line was taken, or nobody will ever take one.
bool DroppingSink::write_now(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (line.size() > max_line_bytes_) {
    line.resize(max_line_bytes_);
    line[max_line_bytes_ - 1] = '\n';
  }
  pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (::poll(&entry, 1, 0) == 0) return false;
  [[maybe_unused]] const ssize_t written = ::write(fd_, line.data(), line.size());
  return true;
}

}  // namespace ddprun::rendezvous
