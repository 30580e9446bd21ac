// SPDX-License-Identifier: Apache-2.0
// The processes of a standing agent. In its unit's cgroup the agent moves into a leaf, beside those
// of its jobs' workers. A cgroup with processes can't enable controllers for its children
// (docs/systemd.md). The ddprun of each gang is a child. The kernel kills it with the agent, and
// its warden kills the workers (docs/nodes.md).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/standing/standing_options.h"
#include "agent/watched_child.h"
#include "common/environment.h"
#include "common/unique_fd.h"
#include "rendezvous/gangs/node_messages.h"

namespace ddprun::launcher {

struct GangCommand {
  std::vector<std::string> argv;         // argv[0]: a path
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  UniqueFd out, err;  // its stdout and stderr; its stdin is empty
};

// A child process with its own session and default signals. It is killed when this process ends,
// and has another oom_score_adj than a daemon. Nothing here blocks: the child enters the directory
// by itself.
class GangProcess : public std::enable_shared_from_this<GangProcess> {
 public:
  struct Handlers {
    std::function<void()> began;  // it is executed
    // Called once, as the last call: it has ended, or never began, and `why` says why.
    std::function<void(int wait_status, const std::string& why)> ended;
  };

  // Throws Error(kSystem) if there can be no child.
  static std::shared_ptr<GangProcess> start(boost::asio::io_context& io, GangCommand command,
                                            Handlers handlers);

  // Sends a signal; does nothing if it has ended.
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
  boost::asio::posix::stream_descriptor report_;  // reports that it is executed, or why it isn't
  boost::asio::steady_timer limit_;
  std::shared_ptr<agent::WatchedChild> child_;
  std::string why_;  // why it never began
};

// `program`: this installation's ddprun.
std::vector<std::string> gang_arguments(const gangs::StartPart& start,
                                        const StandingOptions& options, const std::string& program);

// Returns the agent's own variables, without those of ddprun's options and of its service, and the
// gang's. If both have a variable, the gang's counts.
std::vector<std::string> gang_environment(const gangs::StartPart& start, Environment own);

// Returns the path of the agent's leaf below `mount` (cgroup v2), from the text of
// /proc/self/cgroup. There is none (nullopt) without v2, in the machine's root cgroup, and in such
// a leaf itself. Pure.
std::optional<std::string> supervisor_leaf(std::string_view own_cgroups, const std::string& mount);

// Moves this process, and so its later children, into the leaf, if systemd has delegated the cgroup
// (Delegate=). Returns what prevented it, for people; empty: nothing, or there was nothing to do.
std::string enter_supervisor_leaf();

}  // namespace ddprun::launcher
