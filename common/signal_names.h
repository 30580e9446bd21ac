// SPDX-License-Identifier: Apache-2.0
// The numbers and names of signals, whether this process ignores one, and whether one repeats the
// signal before.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/text.h"

namespace ddprun {

// Returns "SIGTERM"; a real-time or unknown one is "signal 40".
std::string signal_name(int signal_number);

// Parses "SIGTERM", "TERM", "term", "15".
std::optional<int> parse_signal(std::string_view text);

// Whether the signal is ignored because whoever started this process wanted that (nohup): it stays
// so.
bool is_ignored(int signal_number);

// Recognises one order to stop that comes as two signals. The terminal or scheduler sends it to a
// whole group of processes. A wrapper in the group (uv run, timeout, srun) passes it on as well.
// Pure.
class SignalEcho {
 public:
  static constexpr std::chrono::seconds kTime{1};

  // Must be called for each signal that stops. True: it repeats the first one. It is the next
  // signal after that, has the same number, and comes within kTime.
  bool is_echo(int number, Clock::time_point now) {
    if (++num_signals_ == 1) {
      number_ = number;
      at_ = now;
      return false;
    }
    return num_signals_ == 2 && number == number_ && now < at_ + kTime;
  }

  // Returns "got SIGINT again at once: it counts once", with `how` behind "at once".
  static std::string text(int number, std::string_view how = "") {
    return concat("got ", signal_name(number), " again at once", how, ": it counts once");
  }

 private:
  int num_signals_ = 0;
  int number_ = 0;  // the first signal's
  Clock::time_point at_{};
};

}  // namespace ddprun
