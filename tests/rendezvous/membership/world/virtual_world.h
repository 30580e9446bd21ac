// SPDX-License-Identifier: Apache-2.0
// Emulated nodes and their rendezvous in virtual time: one queue of events, no thread, socket or
// clock. The whole run follows from the seed. Pure.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/fleet/emulation.h"
#include "tests/rendezvous/membership/world/virtual_node.h"
#include "tests/rendezvous/membership/world/world_rendezvous.h"

namespace ddprun::membership::testing {

class VirtualWorld final : public bench::World {
 public:
  struct Options {
    PlantedBug bug{};
    bool journalled = false;  // if true, restart_rendezvous() may be called
  };
  VirtualWorld(const bench::WorldPlan& plan, const Options& options);

  Clock::time_point now() const override { return now_; }
  void at(Clock::time_point when, std::function<void()> then) override;
  void begin(bench::EmulatedNodeOptions options) override;
  bench::EmulatedNode* node(int index) override { return host(index).node(); }
  void kill(int node, bool power_loss) override { host(node).kill(power_loss); }
  void cut(int node, bool up, bool down) override { network_.cut(node, up, down); }
  void heal(int node) override;
  void stand_still(int node) override { host(node).stand_still(); }
  void go_on(int node) override { host(node).go_on(); }
  void say_late(int node, bool to_rendezvous, std::uint64_t draw) override;
  void run() override;
  void stop() override { stopped_ = true; }

  // Kills the rendezvous, and starts it again with its journal.
  void restart_rendezvous();

 private:
  VirtualNode& host(int index) { return *hosts_[static_cast<std::size_t>(index)]; }
  void dispatch(const VirtualEvent& event);
  void push(VirtualEvent::Kind kind, Clock::time_point at, std::uint64_t what,
            std::uint32_t generation = 0);

  // The rendezvous' end of the network, like AgentHub.
  void hear(ConnectionId connection, UpFrame frame);
  void feed(const Event& event, bool is_late = false);
  void step(const Event& event, bool is_late);
  void perform(const Action& action);
  void set_tick();

  bench::EventLog& log_;
  const std::function<void(const std::string&)> violated_;
  Clock::time_point now_{std::chrono::hours(1)};
  EventQueue queue_;
  VirtualNetwork network_;
  WorldRendezvous rendezvous_;
  VirtualNode::Ground ground_;
  std::vector<std::unique_ptr<VirtualNode>> hosts_;
  std::vector<std::function<void()>> calls_;
  // The connections that the rendezvous has → whether one has joined.
  std::map<ConnectionId, bool> open_;
  std::deque<Event> waiting_;  // events of connections that were closed meanwhile
  std::optional<Clock::time_point> tick_at_;
  std::uint32_t tick_generation_ = 0;
  bool stopped_ = false;
};

}  // namespace ddprun::membership::testing
