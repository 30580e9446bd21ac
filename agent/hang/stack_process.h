// SPDX-License-Identifier: Apache-2.0
// ddprun-stacks, started ahead and waiting: when ranks hang, they may hang on the very file server
// that has its program file. It has a limited time for its answer. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/watched_child.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

struct ProcessStack {
  std::vector<std::string> python, native;  // frames, innermost first
  std::string note;                         // why some are missing
  bool has_debugger = false;                // debugpy was started in it
};
using ProcessStacks = std::map<pid_t, ProcessStack>;

// Parses the output of ddprun-stacks; skips other lines.
ProcessStacks parse_stacks(std::string_view text);

class StackProcess : public std::enable_shared_from_this<StackProcess> {
 public:
  // Starts `program`, and waits until it is executed. If that fails, take() says why.
  static std::shared_ptr<StackProcess> start(boost::asio::io_context& io,
                                             const std::string& program);

  // Calls `done` once, from the io context, within `limit`, with the stacks that have come by then.
  // `problem` is set if the program could not run. Several calls may be under way. kWhenFree waits
  // while there are kMostAtOnce, since each may need 100 MiB for the files of PyTorch.
  using Done = std::function<void(ProcessStacks, std::string problem)>;
  enum class Turn { kAtOnce, kWhenFree };
  void take(const std::vector<pid_t>& pids, std::chrono::milliseconds limit, Turn turn, Done done);
  static constexpr std::size_t kMostAtOnce = 8;
  bool has_ended() const { return !problem_.empty(); }  // also true if it was never started

  // Ends the process; `done` isn't called any more. Must be called before this object is released,
  // unless the process has ended. It is reaped when the kernel lets it end.
  void abandon();

 private:
  explicit StackProcess(boost::asio::io_context& io);
  void spawn(const std::string& program);
  void ended(int wait_status);
  void begin(std::uint64_t number);
  void begin_waiting();
  void read_answer(std::uint64_t number);
  void finish(std::uint64_t number);

  boost::asio::io_context& io_;
  std::shared_ptr<WatchedChild> child_;  // null: not started; shared with its wait
  UniqueFd requests_;    // a message per request: the pids, and the pipe for the answer
  std::string problem_;  // set: why it doesn't run
  struct Taking {
    explicit Taking(boost::asio::io_context& io) : answer(io), limit(io) {}
    std::vector<pid_t> pids;
    boost::asio::posix::stream_descriptor answer;  // ends after the answer
    boost::asio::steady_timer limit;
    Done done;
    std::string text;  // of the answer
    bool is_begun = false;
  };
  std::map<std::uint64_t, Taking> takes_;
  std::deque<std::uint64_t> waiting_;  // those of takes_ that wait for their turn; some may be over
  std::size_t num_begun_ = 0;          // the number of begun ones in takes_
  std::uint64_t next_number_ = 1;
};

}  // namespace ddprun::agent
