// SPDX-License-Identifier: Apache-2.0
// ddprun's log while a job runs, which is mostly about strangers at its ports: among the workers'
// lines, never blocking, and never so much of it that the user's terminal is flooded. io thread
// only.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "agent/console.h"
#include "common/flood_limit.h"
#include "common/log.h"

namespace ddprun::launcher {

class ConsoleLog {
 public:
  using Tell = std::function<void(LogLevel, const std::string&)>;

  // Takes the log (common/log.h) until destroyed; then it is log_to_stderr's again. `tell` puts a
  // line on `console`'s stderr. One at a time.
  ConsoleLog(const agent::Console& console, Tell tell);
  ~ConsoleLog();  // says how many lines were dropped since the last one
  ConsoleLog(const ConsoleLog&) = delete;
  ConsoleLog& operator=(const ConsoleLog&) = delete;

  static constexpr double kLinesAtOnce = 20;
  static constexpr double kLinesPerSecond = 1;

 private:
  void write(LogLevel level, std::string_view message);
  void say_dropped();

  const agent::Console& console_;
  const Tell tell_;
  FloodLimit limit_{kLinesAtOnce, kLinesPerSecond};
  std::size_t num_dropped_ = 0;
};

}  // namespace ddprun::launcher
