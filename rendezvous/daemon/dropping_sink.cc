// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/dropping_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "common/socket.h"

namespace ddprun::rendezvous {

DroppingSink::DroppingSink(int fd) : fd_(fd), max_bytes_(::isatty(fd) == 1 ? 512 : PIPE_BUF) {}

void DroppingSink::sink_it_(const spdlog::details::log_msg& message) {
  const bool is_flood = message.level == spdlog::level::warn && !warnings_.admit(Clock::now());
  if (is_flood || !is_ready(fd_, POLLOUT)) {
    ++num_dropped_;
    return;
  }
  // In one write: a pipe that is writable may be full after it.
  spdlog::memory_buf_t lines;
  if (num_dropped_ > 0) {
    const std::string text =
        std::to_string(num_dropped_) +
        " line(s) of this log were dropped: nobody took them, or they were a flood of warnings";
    formatter_->format({message.time, {}, message.logger_name, spdlog::level::warn, text}, lines);
    num_dropped_ = 0;
  }
  formatter_->format(message, lines);
  if (lines.size() > max_bytes_) {
    lines.resize(max_bytes_);
    lines[max_bytes_ - 1] = '\n';
  }
  [[maybe_unused]] const ssize_t written = ::write(fd_, lines.data(), lines.size());
}

}  // namespace ddprun::rendezvous
