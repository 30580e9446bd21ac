// SPDX-License-Identifier: Apache-2.0
// ddprun-stacks, started ahead and waiting: when ranks hang, the file server that holds it may be
// what they hang on. Asked for stacks, it is heard for a limited time, whatever becomes of it. io
// thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
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
  std::vector<std::string> frames;  // innermost first, Python's before the native ones
  std::string note;                 // why some are missing
};
using ProcessStacks = std::map<pid_t, ProcessStack>;

// Parses the output of ddprun-stacks; skips other lines.
ProcessStacks parse_stacks(std::string_view text);

class StackProcess : public std::enable_shared_from_this<StackProcess> {
 public:
  // Starts `program`; waits until it is executed. If that fails, take() says why.
  static std::shared_ptr<StackProcess> start(boost::asio::io_context& io,
                                             const std::string& program);

  // Calls `done` once, from the io context, within `limit`: with the stacks that are there by then,
  // and with `problem` set where the program could not run. One at a time.
  using Done = std::function<void(ProcessStacks, std::string problem)>;
  void take(const std::vector<pid_t>& pids, std::chrono::milliseconds limit, Done done);
  bool is_busy() const { return done_ != nullptr; }
  bool has_ended() const { return !problem_.empty(); }  // or was never started

  // Ends it, and is to be called before it is let go; `done` isn't called any more. It is reaped
  // when the kernel lets it end.
  void abandon();

 private:
  explicit StackProcess(boost::asio::io_context& io);
  void spawn(const std::string& program);
  void ended(int wait_status);
  void read_answer();
  void finish();

  boost::asio::io_context& io_;
  std::shared_ptr<WatchedChild> child_;  // null: not started; second owner: its wait
  UniqueFd requests_;                    // a message per request: pids, and the pipe for the answer
  std::string problem_;                  // set: it doesn't run
  boost::asio::posix::stream_descriptor answer_;  // ends with the answer
  std::string text_;                              // of the answer
  boost::asio::steady_timer limit_;
  Done done_;  // empty: nothing was asked
};

}  // namespace ddprun::agent
