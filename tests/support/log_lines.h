// SPDX-License-Identifier: Apache-2.0
// Collects the process' own log lines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"

namespace ddprun::test {

// Collects the log lines while it lives. Only one may live at a time.
class LogLines {
 public:
  LogLines() {
    const std::lock_guard lock(mutex());
    lines().clear();
    set_log_sink([](LogLevel, std::string_view message) {
      const std::lock_guard inner(mutex());
      lines().emplace_back(message);
      changed().notify_all();
    });
  }
  ~LogLines() {
    set_log_sink([](LogLevel, std::string_view) {});
  }

  // Waits for the first line that contains `text`, and returns it; empty after 10 s without one.
  std::string await(const std::string& text) const {
    std::unique_lock lock(mutex());
    std::string found;
    changed().wait_for(lock, std::chrono::seconds(10), [&] {
      for (const std::string& line : lines()) {
        if (line.find(text) != std::string::npos) found = line;
      }
      return !found.empty();
    });
    return found;
  }

  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex());
    return lines();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::condition_variable& changed() {
    static std::condition_variable instance;
    return instance;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> instance;
    return instance;
  }
};

}  // namespace ddprun::test
