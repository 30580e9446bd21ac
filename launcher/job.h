// SPDX-License-Identifier: Apache-2.0
// A prepared job, run: the rendezvous if this node serves it, the node's agent, the signals, and
// the report at the end. ddprun's root object.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/node_agent.h"
#include "agent/preflight_command.h"
#include "common/clock.h"
#include "launcher/endpoint_claim.h"
#include "launcher/preemption_watch.h"
#include "launcher/prepare.h"
#include "rendezvous/daemon/daemon.h"

namespace ddprun::launcher {

class Job {
 public:
  // Takes the endpoint's port where this node serves it. Throws as claim_endpoint.
  explicit Job(JobPlan plan);
  ~Job();

  // Runs the job to its end and prints the report. Returns ddprun's exit status.
  int run();

 private:
  agent::NodeAgentOptions agent_options() const;
  void tell(LogLevel level, const std::string& text);
  void wait_for_signal();
  void begin();
  void run_preflight();
  void say_what_is_waited_for();
  void serve_rendezvous(std::vector<UniqueFd> listeners);
  void succeed_rendezvous();
  void finish(const membership::agent_action::Exit& exit);

  // Constant after construction.
  const JobPlan plan_;
  const Clock::time_point begun_;
  EndpointClaim claim_;

  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer patience_;
  agent::Console console_;
  agent::LineSource own_lines_;  // ddprun's own among the workers'
  std::unique_ptr<rendezvous::Daemon> daemon_;
  std::unique_ptr<agent::NodeAgent> agent_;
  std::unique_ptr<PreemptionWatch> preemption_;
  std::unique_ptr<agent::PreflightCommand> preflight_;  // null: none, or it was ended
  std::optional<membership::agent_action::Exit> exit_;
  bool signalled_ = false;
};

}  // namespace ddprun::launcher
