// SPDX-License-Identifier: Apache-2.0
// One node without workers: the shipped agent machine and link, with workers that exist on paper.
// io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "rendezvous/membership/agent_link.h"
#include "rendezvous/membership/agent_machine.h"

namespace ddprun::ctl {

struct EmulatedAgentOptions {
  membership::AgentOptions machine;
  std::chrono::milliseconds spawn_time{0};  // StartRound → all workers run
  std::chrono::milliseconds stop_time{0};   // told to stop → no worker is left
};

// What the agent was told or did; called from the io context.
struct EmulatedAgentEvents {
  std::function<void()> welcomed;
  std::function<void(const membership::StartRound&)> started;
  std::function<void()> running;
  std::function<void()> told_to_stop;
  std::function<void()> stopped;  // no worker is left
  std::function<void(const membership::agent_action::Exit&)> exited;
};

class EmulatedAgent {
 public:
  EmulatedAgent(boost::asio::io_context& io, EmulatedAgentOptions options,
                EmulatedAgentEvents events);
  EmulatedAgent(const EmulatedAgent&) = delete;
  EmulatedAgent& operator=(const EmulatedAgent&) = delete;

  void start();

  // What happens to its workers: all end well, or one fails. Only while they run.
  void succeed();
  void fail(int exit_code);
  // Power loss: the connection ends without a word, and nothing comes back.
  void vanish();

  bool vanished() const { return vanished_; }
  std::optional<std::uint64_t> live_round() const {
    return live_round_;
  }  // whose workers live here
  int node_rank() const { return node_rank_; }

 private:
  void handle(const membership::AgentEvent& event);
  void perform(const membership::AgentAction& action);
  void after(std::chrono::milliseconds time, std::function<void()> then);
  void arm_timer();

  const EmulatedAgentOptions options_;
  const EmulatedAgentEvents events_;
  membership::AgentMachine machine_;
  membership::AgentLink link_;
  boost::asio::steady_timer machine_timer_;
  boost::asio::steady_timer workers_timer_;
  std::deque<membership::AgentEvent> waiting_;  // an action's own events come after it
  bool handling_ = false;
  std::optional<std::uint64_t> live_round_;
  int node_rank_ = -1;
  int num_workers_ = 1;
  int first_global_rank_ = 0;
  bool vanished_ = false;
};

}  // namespace ddprun::ctl
