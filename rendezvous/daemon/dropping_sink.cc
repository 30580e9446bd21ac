// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/dropping_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "common/journal_prefix.h"
#include "common/log.h"
#include "common/socket.h"

namespace ddprun::rendezvous {

DroppingSink::DroppingSink(int fd) : fd_(fd), max_bytes_(::isatty(fd) == 1 ? 512 : PIPE_BUF) {}

void DroppingSink::sink_it_(const Message& message) {
  const bool is_flood = message.level == spdlog::level::warn && !warnings_.admit(Clock::now());
  bool is_taken = false;
  if (!is_flood && num_dropped_ == 0) {
    is_taken = take(nullptr, message);
  } else if (!is_flood) {
    const std::string text = concat(
        num_dropped_,
        " line(s) of this log were dropped: nobody took them, or they were a flood of warnings");
    const Message dropped{message.time, {}, message.logger_name, spdlog::level::warn, text};
    is_taken = take(&dropped, message);
  }
  num_dropped_ = is_taken ? 0 : num_dropped_ + 1;
}

// In one write: a pipe that is writable may be full after it.
bool DroppingSink::take(const Message* dropped, const Message& message) {
  if (!is_ready(fd_, POLLOUT)) return false;
  spdlog::memory_buf_t lines;
  if (dropped != nullptr) append(*dropped, lines);
  append(message, lines);
  if (lines.size() > max_bytes_) {
    lines.resize(max_bytes_);
    lines[max_bytes_ - 1] = '\n';
  }
  [[maybe_unused]] const ssize_t written = ::write(fd_, lines.data(), lines.size());
  return true;
}

void DroppingSink::append(const Message& message, spdlog::memory_buf_t& lines) {
  const LogLevel level = message.level >= spdlog::level::err    ? LogLevel::kError
                         : message.level == spdlog::level::warn ? LogLevel::kWarning
                         : message.level == spdlog::level::info ? LogLevel::kInfo
                                                                : LogLevel::kDebug;
  const std::string_view prefix = journal_prefix(level);
  lines.append(prefix.data(), prefix.data() + prefix.size());
  formatter_->format(message, lines);
}

}  // namespace ddprun::rendezvous
