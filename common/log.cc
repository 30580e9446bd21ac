// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/flood_limit.h"

namespace ddprun {
namespace {

// Uses one write(2) per line, so that lines of several processes on one stderr stay whole.
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

}  // namespace

void set_log_sink(LogSink sink) { g_sink.store(sink); }
void set_log_level(LogLevel level) { g_level.store(level); }

bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

bool may_log_about_peer() {
  static std::mutex mutex;
  static FloodLimit limit{kPeerLines, kPeerLinesPerSecond};
  static bool has_said = false;
  const std::lock_guard lock(mutex);
  if (limit.admit(Clock::now())) return true;
  if (!std::exchange(has_said, true)) {
    log_warning(
        "lines about connections that were closed or refused are left out where they are more "
        "than ",
        kPeerLinesPerSecond, " a second (said once)");
  }
  return false;
}

void log_message(LogLevel level, std::string_view message) {
  if (log_enabled(level)) g_sink.load()(level, message);
}

}  // namespace ddprun
