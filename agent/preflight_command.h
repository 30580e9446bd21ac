// SPDX-License-Identifier: Apache-2.0
// --preflight: a command of the user's that tests whether this node is fit for the job. It runs
// under a warden, as workers do: no process of it outlives its end, its deadline or ddprun. io
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/worker_group.h"

namespace ddprun::agent {

struct PreflightCommandOptions {
  std::string command;                   // for /bin/sh -c
  std::vector<std::string> environment;  // "NAME=value", complete
  std::chrono::milliseconds limit{60'000};
  // The exit code with which the command's last line alone is the problem's text. 0: no code does
  // that.
  int verdict_code = 0;
};

class PreflightCommand {
 public:
  // The command's stdout and stderr go to this process' stderr. `done` is called once, from the io
  // context, when no process of the command is left. `problem` is empty if it exited with 0 in
  // time; else it says what happened ("exit code 3: <its last line>"). The owner may destroy this
  // only afterwards, or outside of the io context's handlers; no call of `done` follows then.
  PreflightCommand(boost::asio::io_context& io, Console& console, PreflightCommandOptions options,
                   std::function<void(std::string problem)> done);

  // Begins, once. Throws Error when the warden can't be started.
  void start();

 private:
  void ended(std::string problem);

  const PreflightCommandOptions options_;
  const std::function<void(std::string)> done_;
  boost::asio::steady_timer limit_;
  WorkerGroup group_;
  bool ended_ = false;
  std::string problem_;
};

}  // namespace ddprun::agent
