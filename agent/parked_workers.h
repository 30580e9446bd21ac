// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent_socket.h"
#include "agent/console.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/progress_pages.h"
#include "agent/worker_environment.h"
#include "agent/worker_group.h"

namespace ddprun::agent {

struct ParkedWorkersOptions {
  WorkerGroupOptions group;
  WorkerEnvironmentOptions environment;
  WorkerCommand command;
  std::string socket_parent;
};

struct ParkedWorkersEvents {
  AgentSocketEvents socket;
  // A worker has ended: no place can be given any more.
  std::function<void(const std::string& why)> failed;
  std::function<void()> gone;  // after dismiss(): no process is left
};

// The workers of a spare node that run before it has a place in a round (--prewarm). Each prepares
// what it can, and says that it waits for its place (docs/agent-socket.md).
class ParkedWorkers {
 public:
  // Starts them. `pages` outlives this; the pages' round becomes 0 (none). Throws Error when the
  // socket can't be made. If the program can't be started, `failed` is called.
  ParkedWorkers(boost::asio::io_context& io, Console& console, ProgressPages& pages,
                ParkedWorkersOptions options, ParkedWorkersEvents events);

  // Gives each worker its place; `environments` are by local rank. True: all have it, and the
  // caller takes group and socket. False: not all of them wait (any more); call dismiss().
  bool place(const std::vector<std::vector<std::string>>& environments);

  std::unique_ptr<WorkerGroup> take_group() { return std::move(group_); }
  std::unique_ptr<AgentSocket> take_socket() { return std::move(socket_); }

  // Kills them with SIGKILL: they have nothing to lose. `gone` follows.
  void dismiss();

  const std::string& socket_directory() const { return socket_->directory(); }
  const std::shared_ptr<const RoundCgroup>& cgroup() const { return cgroup_; }  // null: none

 private:
  void fail(const std::string& why);

  ParkedWorkersEvents events_;
  std::vector<std::vector<std::string>> started_with_;  // environments by local rank
  const std::shared_ptr<const RoundCgroup> cgroup_;     // shared with group_
  std::unique_ptr<AgentSocket> socket_;
  std::unique_ptr<WorkerGroup> group_;
  bool failed_ = false;
};

}  // namespace ddprun::agent
