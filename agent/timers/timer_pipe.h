// SPDX-License-Identifier: Apache-2.0
// The server of torch.distributed.elastic.timer's FileTimerClient: a named pipe. The workers of a
// round, and what they started, set timers for themselves on it. A process that is not back in time
// gets a signal. io thread only.
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
  std::string scope;   // as it calls what it does
  double expires = 0;  // seconds since 1970; below 0: it is back
  int signal = 0;      // below 1: none
};

// nullopt: it is none, or has a value that can't be.
std::optional<TimerRequest> parse_timer_request(std::string_view line);

// Timers that processes of this node have set for themselves. Pure: no I/O, clock or process.
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

struct TimerPipeOptions {
  std::string path;
  std::function<int(int local_rank)> global_rank;
  std::function<std::vector<pid_t>()> workers;  // by local rank; 0: doesn't run
  std::function<void(LogLevel, const std::string&)> tell;
};

class TimerPipe : public std::enable_shared_from_this<TimerPipe> {
 public:
  // The path of the pipe, by the variables that torchrun reads: a file that the user names, else
  // one in `directory`. Empty: no timers are wanted, or there is no directory.
  static std::string path_of(const Environment& environment, const std::string& directory);

  // Makes the pipe; another pipe there is replaced. Throws Error(kSystem), also where something
  // else is at that path.
  static std::shared_ptr<TimerPipe> open(boost::asio::io_context& io, TimerPipeOptions options);

  ~TimerPipe();
  // Ends it and removes the pipe.
  void close();

  const std::string& path() const { return options_.path; }
  // Why a worker was sent a signal, or what it had started; empty: it was not.
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
  boost::asio::system_timer timer_;  // as the clients': their moments are of the wall clock
  TimerTable timers_;
  std::array<char, 65536> buffer_;
  std::string line_;       // its beginning
  bool skipping_ = false;  // the rest of a line that is too long
  FloodLimit complaints_{5, 0.1};
  std::map<pid_t, std::string> reasons_;  // by worker
};

}  // namespace ddprun::agent
