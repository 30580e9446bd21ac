// SPDX-License-Identifier: Apache-2.0
#include "launcher/terminal_text.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "common/env_names.h"
#include "common/log_level.h"
#include "common/socket.h"
#include "common/standard_streams.h"
#include "common/text.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds kLogPatience{100};  // short, since the io thread waits

}  // namespace

LogLevel log_level(const Environment& environment) {
  const std::string name = find_variable(environment, env::kLogLevel).value_or("");
  if (name == "DEBUG" || name == "INFO") return LogLevel::kDebug;
  const bool errors_only = name == "ERROR" || name == "CRITICAL" || name == "FATAL";
  return errors_only ? LogLevel::kError : LogLevel::kInfo;
}

std::size_t write_what_fits(int fd, std::string_view text, std::chrono::milliseconds patience) {
  // If poll(2) calls a descriptor writable, it takes this much without blocking.
  const std::size_t piece_bytes = ::isatty(fd) == 1 ? 512 : PIPE_BUF;
  std::size_t done = 0;
  while (done < text.size()) {
    if (!wait_ready(fd, POLLOUT, Deadline::after(patience))) {
      errno = 0;
      return done;
    }
    const std::string_view piece = text.substr(done, piece_bytes);
    const ssize_t written = ::write(fd, piece.data(), piece.size());
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || (errno != EINTR && errno != EAGAIN)) {
      return done;
    }
  }
  return done;
}

bool write_within(int fd, std::string_view text, std::chrono::milliseconds patience) {
  return write_what_fits(fd, text, patience) == text.size();
}

std::string own_line(LogLevel level, std::string_view text) {
  std::string line = concat(journal_prefix(level), "[ddprun] ");
  if (level == LogLevel::kWarning) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  line += one_line(text);
  line += '\n';
  return line;
}

bool write_to_stderr(std::string_view text) {
  return write_within(STDERR_FILENO, text, kLastLinesPatience);
}
bool write_to_stdout(std::string_view text) {
  return write_within(STDOUT_FILENO, text, kLastLinesPatience);
}

void log_to_stderr(LogLevel level, std::string_view message) {
  write_within(STDERR_FILENO, own_line(level, message), kLogPatience);
}

}  // namespace ddprun::launcher
