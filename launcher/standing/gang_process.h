// SPDX-License-Identifier: Apache-2.0
// The ddprun of a gang, as a child that doesn't outlive its standing agent: the kernel kills it
// with the agent, and its warden kills the workers (docs/nodes.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/watched_child.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

struct GangCommand {
  std::vector<std::string> argv;         // argv[0]: a path
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  UniqueFd out, err;  // its stdout and stderr; its stdin is empty
};

// Own session, default signals, ended with this process, and with another oom_score_adj than a
// daemon's. Waits for nothing: the child enters the directory by itself.
class GangProcess : public std::enable_shared_from_this<GangProcess> {
 public:
  struct Handlers {
    std::function<void()> began;  // it is executed
    // Once, the last call: it has ended, or (`why` says why) never began.
    std::function<void(int wait_status, const std::string& why)> ended;
  };

  // Throws Error(kSystem): there can be no child.
  static std::shared_ptr<GangProcess> start(boost::asio::io_context& io, GangCommand command,
                                            Handlers handlers);

  // Nothing where it has ended.
  void signal(int number) { child_->signal(number); }

 private:
  GangProcess(boost::asio::io_context& io, const ChildCommand& command, Handlers handlers,
              UniqueFd report);
  void await_report();
  void take_report();
  void give_up();
  void end(int wait_status);

  const std::string program_, directory_;
  Handlers handlers_;
  boost::asio::posix::stream_descriptor report_;  // says that it is executed, or why it isn't
  boost::asio::steady_timer limit_;
  std::shared_ptr<agent::WatchedChild> child_;
  std::string why_;  // it never began
};

}  // namespace ddprun::launcher
