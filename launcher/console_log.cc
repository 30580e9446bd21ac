// SPDX-License-Identifier: Apache-2.0
#include "launcher/console_log.h"

#include <utility>

#include "common/check.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

ConsoleLog* g_current = nullptr;  // the log's sink is a plain function

}  // namespace

ConsoleLog::ConsoleLog(const agent::Console& console, Tell tell)
    : console_(console), tell_(std::move(tell)) {
  DDPRUN_CHECK(g_current == nullptr);
  g_current = this;
  set_log_sink([](LogLevel level, std::string_view message) { g_current->write(level, message); });
}

ConsoleLog::~ConsoleLog() {
  say_dropped();
  set_log_sink(&log_to_stderr);
  g_current = nullptr;
}

void ConsoleLog::write(LogLevel level, std::string_view message) {
  if (console_.is_full(agent::OutputStream::kStderr) ||
      (level < LogLevel::kError && !limit_.admit(Clock::now()))) {
    ++num_dropped_;
    return;
  }
  say_dropped();
  tell_(level, std::string(message));
}

void ConsoleLog::say_dropped() {
  if (num_dropped_ == 0) return;
  tell_(LogLevel::kWarning, concat(std::exchange(num_dropped_, 0),
                                   " line(s) of ddprun's log were dropped: nobody took them, or "
                                   "they were a flood"));
}

}  // namespace ddprun::launcher
