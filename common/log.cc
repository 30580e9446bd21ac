// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "common/clock.h"

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

struct PeerLines {
  std::mutex mutex;
  Clock::time_point minute_began;
  int num_said = 0;  // in it
};

}  // namespace

void set_log_sink(LogSink sink) { g_sink.store(sink); }
void set_log_level(LogLevel level) { g_level.store(level); }

bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

bool may_log_about_peer() {
  static PeerLines lines;
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(lines.mutex);
  if (now - lines.minute_began >= std::chrono::minutes(1)) {
    lines.minute_began = now;
    lines.num_said = 0;
  }
  if (++lines.num_said == kPeerLines + 1) {
    log_warning("more than ", kPeerLines,
                " lines a minute are about connections that were closed or refused: "
                "the others of this minute are left out");
  }
  lines.num_said = std::min(lines.num_said, kPeerLines + 1);
  return lines.num_said <= kPeerLines;
}

void log_message(LogLevel level, std::string_view message) {
  if (log_enabled(level)) g_sink.load()(level, message);
}

}  // namespace ddprun
