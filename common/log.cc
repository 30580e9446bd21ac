// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <utility>

namespace ddprun {
namespace {

// One write(2) per line, so that lines of several processes on one stderr stay whole.
void stderr_sink(LogLevel level, std::string_view message) {
  std::string line = "ddprun: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  line.append(one_line(message));
  line += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::atomic<LogSink> g_sink{&stderr_sink};
std::atomic<LogLevel> g_level{LogLevel::kInfo};
thread_local std::string_view t_job;

}  // namespace

void set_log_sink(LogSink sink) { g_sink.store(sink); }
void set_log_level(LogLevel level) { g_level.store(level); }
bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

std::string one_line(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '\n') {
      line += "\\n";
    } else if (letter == '\t') {
      line += "\\t";
    } else if (byte < ' ' || byte == 0x7f) {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      line += letter;
    }
  }
  return line;
}

void log_message(LogLevel level, std::string_view message) {
  if (log_enabled(level)) g_sink.load()(level, message);
}

LogJob::LogJob(std::string_view run_id) : before_(std::exchange(t_job, run_id)) {}
LogJob::~LogJob() { t_job = before_; }
std::string_view LogJob::current() { return t_job; }

}  // namespace ddprun
