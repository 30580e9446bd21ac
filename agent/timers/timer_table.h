// SPDX-License-Identifier: Apache-2.0
// Timers that processes of this node have set for themselves (torch.distributed.elastic.timer): who
// is not back in time gets the signal that it asked for. Pure: no I/O, clock or process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::agent {

// A line of the pipe: {"version": 1, "pid": …, "scope_id": …, "expiration_time": …, "signal": …}.
struct TimerRequest {
  pid_t pid = 0;
  std::string scope;   // as it calls what it does
  double expires = 0;  // seconds since 1970; below 0: it is back
  int signal = 0;      // below 1: none
};

// nullopt: it is none, or has a value that can't be.
std::optional<TimerRequest> parse_timer_request(std::string_view line);

class TimerTable {
 public:
  static constexpr std::size_t kMostTimers = 4096;
  static constexpr std::size_t kMostScopeBytes = 1024;

  // `begun`: what tells the process from a later one of the same pid. False: there is no room.
  bool take(const TimerRequest& request, std::uint64_t begun);

  // When the next one expires, in seconds since 1970.
  std::optional<double> next() const;

  // A process with a timer that has expired. All timers of it are forgotten then.
  struct Expired {
    pid_t pid = 0;
    std::uint64_t begun = 0;
    std::string scope;  // of the first to expire that has a signal, else of the first
    int signal = 0;     // 0: none has
  };
  std::vector<Expired> expire(double now);

 private:
  using Key = std::pair<pid_t, std::string>;
  struct Timer {
    double expires = 0;
    int signal = 0;
    std::uint64_t begun = 0;
  };
  void forget(std::map<Key, Timer>::iterator timer);

  std::map<Key, Timer> timers_;
  std::set<std::pair<double, Key>> by_time_;
};

}  // namespace ddprun::agent
