// SPDX-License-Identifier: Apache-2.0
// The processes of a standing agent. Its own place in its unit's cgroup is a leaf beside those of
// its jobs' workers. A cgroup with processes can't give controllers on (docs/systemd.md). The
// ddprun of each gang is a child that doesn't outlive it. The kernel kills it with the agent, and
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

// `program`: this installation's ddprun.
std::vector<std::string> gang_arguments(const gangs::StartPart& start,
                                        const StandingOptions& options, const std::string& program);

// The agent's own variables, without those of ddprun's options and of its service; those of the
// gang win.
std::vector<std::string> gang_environment(const gangs::StartPart& start, Environment own);

// The path of the leaf below `mount` (cgroup v2), by what /proc/self/cgroup says. nullopt: there is
// no v2, or this is the machine's own cgroup, or such a leaf already. Pure.
std::optional<std::string> supervisor_leaf(std::string_view own_cgroups, const std::string& mount);

// Goes there, with children from then on, where systemd has given the cgroup away (Delegate=).
// Returns what kept it from that, for a person; empty: nothing, or nothing was to be done.
std::string enter_supervisor_leaf();

}  // namespace ddprun::launcher
