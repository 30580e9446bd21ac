// SPDX-License-Identifier: Apache-2.0
// The ddprun of a gang, as a child that doesn't outlive its standing agent: the kernel kills it
// with the agent, and its warden kills the workers (docs/nodes.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "launcher/hosts/child_process.h"

namespace ddprun::launcher {

struct GangCommand {
  std::vector<std::string> argv;         // argv[0]: a path
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  UniqueFd out, err;  // its stdout and stderr; its stdin is empty
};

// Waits until it is executed: own session, default signals, ended with this process, and with
// another oom_score_adj than a daemon's. `ended`: as ChildProcess::start()'s. Throws
// Error(kInvalidArgument) that says what it can't: enter the directory, execute.
std::shared_ptr<ChildProcess> start_gang(boost::asio::io_context& io, GangCommand command,
                                         std::function<void(int wait_status)> ended);

}  // namespace ddprun::launcher
