// SPDX-License-Identifier: Apache-2.0
// The server of torch.distributed.elastic.timer's FileTimerClient: a named pipe on which the
// workers of a round, and what they started, set timers for themselves; who is not back in time
// gets a signal. io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/system_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/timers/timer_table.h"
#include "common/environment.h"
#include "common/flood_limit.h"
#include "common/log.h"

namespace ddprun::agent {

struct TimerPipeOptions {
  std::string path;
  std::function<int(int local_rank)> global_rank;
  std::function<std::vector<pid_t>()> workers;  // by local rank; 0: doesn't run
  std::function<void(LogLevel, const std::string&)> tell;
};

class TimerPipe : public std::enable_shared_from_this<TimerPipe> {
 public:
  // Where the pipe is to be, by the variables that torchrun reads: a file that the user names, else
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
