// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/dropping_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "common/log.h"
#include "common/socket.h"

namespace ddprun::rendezvous {

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

DescriptorSink::DescriptorSink(int fd) : fd_(fd), max_bytes_(::isatty(fd) == 1 ? 512 : PIPE_BUF) {}

// In one write: a pipe that is writable may be full after it.
bool DescriptorSink::take(const Message* dropped, const Message& message) {
  if (!is_ready(fd_, POLLOUT)) return false;
  spdlog::memory_buf_t lines;
  if (dropped != nullptr) formatter_->format(*dropped, lines);
  formatter_->format(message, lines);
  if (lines.size() > max_bytes_) {
    lines.resize(max_bytes_);
    lines[max_bytes_ - 1] = '\n';
  }
  [[maybe_unused]] const ssize_t written = ::write(fd_, lines.data(), lines.size());
  return true;
}

bool JournalSink::take(const Message* dropped, const Message& message) {
  if (dropped != nullptr) {
    const LogJob of_none({});
    if (!put(*dropped)) return false;
  }
  return put(message);  // false: how many were dropped is said again, with this one
}

bool JournalSink::put(const Message& message) const {
  const LogLevel level = message.level >= spdlog::level::err    ? LogLevel::kError
                         : message.level == spdlog::level::warn ? LogLevel::kWarning
                         : message.level == spdlog::level::info ? LogLevel::kInfo
                                                                : LogLevel::kDebug;
  return journal_.write_line(level, "ddprund", {message.payload.data(), message.payload.size()});
}

}  // namespace ddprun::rendezvous
