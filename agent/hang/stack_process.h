// SPDX-License-Identifier: Apache-2.0
// Runs ddprun-stacks once and hands over what it found, however it ended. io thread only.
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

#include "common/unique_fd.h"

namespace ddprun::agent {

struct ProcessStack {
  std::vector<std::string> frames;  // innermost first, Python's before the native ones
  std::string note;                 // why some are missing
};
using ProcessStacks = std::map<pid_t, ProcessStack>;

// What ddprun-stacks prints; what isn't of that form is skipped.
ProcessStacks parse_stacks(std::string_view text);

class StackProcess : public std::enable_shared_from_this<StackProcess> {
 public:
  // `done` is called once, from the io context, within `limit`; a process that has no stack by then
  // is missing, with `problem` set where the program could not run.
  using Done = std::function<void(ProcessStacks, std::string problem)>;
  static std::shared_ptr<StackProcess> start(boost::asio::io_context& io,
                                             const std::string& program,
                                             const std::vector<pid_t>& pids,
                                             std::chrono::milliseconds limit, Done done);
  // Kills it; `done` isn't called any more. It is still reaped.
  void abandon();

 private:
  StackProcess(boost::asio::io_context& io, Done done);
  void wait_for_end();
  void finish(std::string problem);

  pid_t pid_ = -1;
  UniqueFd output_;  // a memory file
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer limit_;
  Done done_;
};

}  // namespace ddprun::agent
