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

void DroppingSink::sink_it_(const spdlog::details::log_msg& message) {
  const bool is_flood = message.level == spdlog::level::warn && !warnings_.admit(Clock::now());
  if (!is_flood && num_dropped_ > 0) {
    const std::string text = concat(
        num_dropped_,
        " line(s) of this log were dropped: nobody took them, or they were a flood of warnings");
    const LogJob of_none({});
    if (take({message.time, {}, message.logger_name, spdlog::level::warn, text})) num_dropped_ = 0;
  }
  if (is_flood || num_dropped_ > 0 || !take(message)) ++num_dropped_;
}

DescriptorSink::DescriptorSink(int fd) : fd_(fd), max_bytes_(::isatty(fd) == 1 ? 512 : PIPE_BUF) {}

bool DescriptorSink::take(const spdlog::details::log_msg& message) {
  if (!is_ready(fd_, POLLOUT)) return false;
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (line.size() > max_bytes_) {
    line.resize(max_bytes_);
    line[max_bytes_ - 1] = '\n';
  }
  [[maybe_unused]] const ssize_t written = ::write(fd_, line.data(), line.size());
  return true;
}

bool JournalSink::take(const spdlog::details::log_msg& message) {
  constexpr std::string_view kPriorities = "77643211";  // of syslog(3), by spdlog's levels
  const std::string_view priority = kPriorities.substr(message.level, 1);
  JournalLog::Fields fields{{"MESSAGE", {message.payload.data(), message.payload.size()}},
                            {"PRIORITY", priority},
                            {"SYSLOG_IDENTIFIER", "ddprund"}};
  if (!LogJob::current().empty()) fields.emplace_back("DDPRUN_JOB_ID", LogJob::current());
  return journal_.write(fields);
}

}  // namespace ddprun::rendezvous
