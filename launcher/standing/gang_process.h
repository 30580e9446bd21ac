// SPDX-License-Identifier: Apache-2.0
// The ddprun of a gang, as a child that doesn't outlive its standing agent: the kernel kills it
// with the agent, and its warden kills the workers (docs/nodes.md). io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::launcher {

struct GangCommand {
  std::vector<std::string> argv;         // argv[0]: a path
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  UniqueFd out, err;  // its stdout and stderr; its stdin is empty
};

class GangProcess : public std::enable_shared_from_this<GangProcess> {
 public:
  // Waits until it is executed: own session, default signals, ended with this process, and with
  // another oom_score_adj than a daemon's. `ended` is called once from the io context, when it is
  // reaped. Throws Error(kInvalidArgument) that says what it can't: enter the directory, execute.
  static std::shared_ptr<GangProcess> start(boost::asio::io_context& io, GangCommand command,
                                            std::function<void(int wait_status)> ended);

  // Nothing where it has ended.
  void signal(int number);

 private:
  GangProcess(boost::asio::io_context& io, pid_t pid, UniqueFd pidfd,
              std::function<void(int)> ended);
  void wait_for_end();

  pid_t pid_;  // 0: reaped
  boost::asio::posix::stream_descriptor pidfd_;
  std::function<void(int)> ended_;
};

}  // namespace ddprun::launcher
