// SPDX-License-Identifier: Apache-2.0
// One node's agent at work: AgentMachine decides, this class carries its decisions out. It connects
// the machine to its link, the round's store, the node's workers and a timer. io thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/link/agent_link.h"
#include "agent/link/agent_runner.h"
#include "agent/monitor/agent_metrics.h"
#include "agent/node_agent_options.h"
#include "agent/node_reporter.h"
#include "agent/round_runner.h"
#include "agent/round_store.h"
#include "agent/round_workers.h"
#include "agent/worker_talk.h"
#include "common/clock.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// Events for the agent's owner; called from the io context.
struct NodeAgentEvents : NodeNews {
  Tell tell;
  std::function<void(const membership::agent_action::Exit&)> exited;  // the last call, once
  // Called when an attempt to reach a rendezvous failed before any has taken this node in, with the
  // reason. Another attempt follows. May be empty.
  std::function<void(const std::string& why)> unreached;
};

// Destroy it only when the io context runs no more.
class NodeAgent {
 public:
  NodeAgent(boost::asio::io_context& io, Console& console, NodeAgentOptions options,
            NodeAgentEvents events);

  // Begins; everything after this happens in the io context. `unfit`: why this node can't run its
  // workers; empty: it can. The other nodes are told it, and the rendezvous keeps this node out.
  void start(const std::string& unfit = "");

  // Takes a signal that ddprun itself got: the first one ends the job in order, a second one at
  // once.
  void signal(int number, bool is_users = true);

  // Called when whoever started this ddprun from elsewhere is gone. This node leaves, its workers
  // are stopped by signal `number`, and the job goes on if it can.
  void abandon(const std::string& reason, int number);

  // Called when this node is about to be taken away, or the job's time is over. The job's workers
  // are asked to leave at a step boundary.
  void warn(membership::Preempted warning);

  bool has_reached_rendezvous() const { return reached_; }
  int node_rank() const { return workers_.node_rank(); }
  // Returns the files that this node's workers left in the latest round and that stay.
  std::vector<std::string> flight_recorders() const { return talk_.flight_recorders(); }
  // Returns the present values; may be called before start(). Waits for nothing.
  AgentMetrics metrics();

 private:
  std::function<void(std::string)> store_sender();
  void handle(membership::AgentEvent event) { runner_.handle(std::move(event)); }
  Say say();
  void heard(const membership::AgentEvent& link_event);
  void perform(const membership::AgentAction& action);
  void wake_at(std::optional<Clock::time_point> at);
  void end(const membership::AgentEvent& event);
  void leave(const membership::agent_action::Exit& exit);

  boost::asio::io_context& io_;
  const NodeAgentOptions options_;
  const NodeAgentEvents events_;

  membership::AgentRunner runner_;
  membership::AgentLink link_;
  RoundStore store_;
  boost::asio::steady_timer timer_;
  // Each uses those above it.
  WorkerTalk talk_;
  RoundWorkers workers_;
  NodeReporter reporter_;
  RoundRunner rounds_;

  bool linked_ = false;  // this node is taken in, and connected
  bool reached_ = false;
  bool taken_in_ = false;           // a rendezvous has taken this node in, as far as is known
  std::function<void()> farewell_;  // set: this node is done, but it keeps the store for others
};

}  // namespace ddprun::agent
