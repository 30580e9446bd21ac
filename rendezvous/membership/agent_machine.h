// SPDX-License-Identifier: Apache-2.0
// The agent's side of the conversation: what one node does with what the rendezvous, its workers
// and its user say. Pure: no I/O, clock or thread; the owner carries the actions out.
//
//   AgentMachine machine(options, Clock::now());
//   perform(machine.step(agent_event::Start{}, now));            // → Connect
//   …each event as it happens: perform(machine.step(event, now));
//   …and a timer armed at machine.next_deadline(), which feeds Timer{}.
//
// Order of a healthy run: Connect → LinkUp → BindStore → StoreBound → Send(Join) → Welcome →
// StartRound → [ServeStore] Spawn → Running → Succeeded → JobEnd(0) → StopWorkers → WorkersGone →
// [CloseStore] Exit(0).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "rendezvous/membership/agent_events.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

struct AgentOptions {
  Join join;  // as the launcher knows it; session, store_port are the machine's
  // Of the rendezvous, as given, at least one; static mode: the one is also MASTER_ADDR/PORT.
  std::vector<Endpoint> endpoints;
  std::uint16_t store_port = 0;  // --master-port outside static mode; 0 = any free port
  std::chrono::milliseconds connect_timeout{60'000};          // first connection
  std::chrono::milliseconds welcome_timeout{30'000};          // Join → Welcome
  std::chrono::milliseconds rendezvous_lost_timeout{60'000};  // workers kept without a rendezvous
  std::chrono::milliseconds embedded_lost_timeout{3'000};     // likewise, when it was embedded
  std::chrono::milliseconds leave_timeout{2'000};  // after Leave: until the job's end is confirmed
  std::chrono::milliseconds stop_margin{10'000};   // beyond stop_grace until WorkersGone
  // Of the pings; 0, or more than half the keep-alive time: a third of that.
  std::chrono::milliseconds keep_alive_interval{0};
  bool prewarm = false;  // a spare starts its workers before it has a place for them
  bool in_own_job =
      false;  // a worker of this very job started it: it can't wait for that one's end
  // SIGTERM → SIGKILL of a node that is cut off.
  std::chrono::milliseconds fence_grace{kFenceGrace};
};

class AgentMachine {
 public:
  explicit AgentMachine(AgentOptions options);
  ~AgentMachine();
  AgentMachine(AgentMachine&&) noexcept;
  AgentMachine& operator=(AgentMachine&&) noexcept;

  // One event; the actions that follow from it. After Exit every event returns nothing. `now` never
  // goes back. Events that don't fit the state (a late one of an old round) change nothing.
  std::vector<AgentAction> step(const AgentEvent& event, Clock::time_point now);

  // When Timer is due. nullopt: nothing is waited for but workers that run.
  std::optional<Clock::time_point> next_deadline() const;

  bool exited() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::membership
