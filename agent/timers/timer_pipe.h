// SPDX-License-Identifier: Apache-2.0
// The server of torch.distributed.elastic.timer's FileTimerClient: a named pipe. The workers of a
// round, and the processes that they started, set timers for themselves on it. A process whose
// timer expires gets a signal. io thread only.
#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/system_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "common/flood_limit.h"
#include "common/log_level.h"

namespace ddprun::agent {

// A line of the pipe: {"version": 1, "pid": …, "scope_id": …, "expiration_time": …, "signal": …}.
struct TimerRequest {
  pid_t pid = 0;
  std::string scope;   // the process' name for what it does
  double expires = 0;  // seconds since 1970; below 0: the timer is ended
  int signal = 0;      // below 1: none
};

// Parses a line. nullopt: it is no request, or has an impossible value.
std::optional<TimerRequest> parse_timer_request(std::string_view line);

// Timers that processes of this node have set for themselves. Pure: no I/O, clock or process.
class TimerTable {
 public:
  static constexpr std::size_t kMostTimers = 4096;
  static constexpr std::size_t kMostScopeBytes = 1024;

  // Adds or ends a timer. `begun` tells the process from a later one of the same pid. False: there
  // is no room.
  bool take(const TimerRequest& request, std::uint64_t begun);

  // Returns when the next timer expires, in seconds since 1970.
  std::optional<double> next() const;

  // A process with an expired timer. All its timers are removed then.
  struct Expired {
    pid_t pid = 0;
    std::uint64_t begun = 0;
    std::string scope;  // of its first expired timer that has a signal, else of the first
    int signal = 0;     // 0: no expired timer has one
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

struct TimerPipeOptions {
  std::string path;
  std::function<int(int local_rank)> global_rank;
  std::function<std::vector<pid_t>()> workers;  // by local rank; 0: doesn't run
  std::function<void(LogLevel, const std::string&)> tell;
};

class TimerPipe : public std::enable_shared_from_this<TimerPipe> {
 public:
  // Returns the path of the pipe, from the variables that torchrun reads: a file that the user
  // names, else one in `directory`. Empty: no timers are wanted, or there is no directory.
  static std::string path_of(const Environment& environment, const std::string& directory);

  // Makes the pipe; an older pipe at its path is replaced. Throws Error(kSystem), also if something
  // else is at that path.
  static std::shared_ptr<TimerPipe> open(boost::asio::io_context& io, TimerPipeOptions options);

  ~TimerPipe();
  // Stops the server and removes the pipe.
  void close();

  const std::string& path() const { return options_.path; }
  // Returns why a signal was sent to a worker, or to a process that it had started; empty: none
  // was.
  std::string reason(pid_t worker) const;

 private:
  TimerPipe(boost::asio::io_context& io, TimerPipeOptions options);
  void make();
  void read();
  void take(std::string_view line);
  void await_next();
  void end(const TimerTable::Expired& expired);
  void complain(const std::string& text);

  const TimerPipeOptions options_;
  boost::asio::posix::stream_descriptor pipe_;
  // It uses the wall clock, since the clients' times are of that clock.
  boost::asio::system_timer timer_;
  TimerTable timers_;
  std::array<char, 65536> buffer_;
  std::string line_;       // the unfinished line
  bool skipping_ = false;  // skips the rest of a line that is too long
  FloodLimit complaints_{5, 0.1};
  std::map<pid_t, std::string> reasons_;  // by worker
};

}  // namespace ddprun::agent
