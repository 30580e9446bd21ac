// SPDX-License-Identifier: Apache-2.0
// The options of a NodeAgent, which its parts read too, and the callbacks of those parts. Plain
// data.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/hang/rank_sample.h"
#include "agent/isolation/worker_cgroups.h"
#include "agent/link/agent_machine.h"
#include "agent/output/log_tree.h"
#include "agent/preflight/node_checks.h"
#include "agent/warm/warm_helper.h"
#include "agent/worker_environment.h"
#include "agent/worker_group.h"
#include "common/endpoint.h"
#include "common/log_level.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::agent {

struct NodeAgentOptions {
  membership::AgentOptions machine;
  // The rendezvous' addresses as this node reaches it; machine.endpoints has them as given.
  std::vector<Endpoint> connect_to;
  membership::LinkSecurity security;  // of the connection to it
  WorkerGroupOptions workers;
  WorkerEnvironmentOptions environment;
  std::string socket_parent;   // directory for the workers' socket (agent_socket.h); empty: none
  HangLimits hang_limits;      // of the ranks of this node
  std::string stacks_program;  // ddprun-stacks; empty: no stacks of workers that hang
  WorkerCommand command;
  WarmOptions warm;
  // Checked before each round's workers are started: a node that is not fit asks to be left out.
  // nullopt: nothing is checked, since no other node could take its place.
  std::optional<NodeNeeds> needs;
  WorkerCgroups* cgroups = nullptr;  // of this node; they outlive the agent; null: none
  std::shared_ptr<LogTree> logs;     // of workers.output; the log thread uses it; null: no files
};

// Tells the machine an event, which it may act on at once.
using Say = std::function<void(membership::AgentEvent)>;
using Tell = std::function<void(LogLevel, const std::string&)>;  // one line for the user

}  // namespace ddprun::agent
