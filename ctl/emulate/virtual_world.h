// SPDX-License-Identifier: Apache-2.0
// Emulated nodes and their rendezvous in virtual time: one queue of events, no thread, socket or
// clock; the whole run follows from the seed. Pure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ctl/emulate/virtual_node.h"
#include "ctl/emulate/virtual_rendezvous.h"
#include "ctl/emulate/world.h"

namespace ddprun::ctl {

class VirtualWorld final : public World {
 public:
  struct Options {
    int num_hosts = 0;
    membership::JobSettings settings;
    Plant plant;
    std::function<void(const std::string&)> violated;  // an invariant; may call stop()
  };
  // All outlive it.
  VirtualWorld(Options options, NodeObserver& observer, Chronicle& chronicle);

  void set_latency(int node, std::chrono::microseconds each_way);

  Clock::time_point now() const override { return now_; }
  void at(Clock::time_point when, std::function<void()> then) override;
  void begin(EmulatedNodeOptions options) override;
  EmulatedNode* node(int index) override { return host(index).node(); }
  void kill(int node, bool power_loss) override { host(node).kill(power_loss); }
  void cut(int node, bool up, bool down) override { network_.cut(node, up, down); }
  void heal(int node) override;
  void stand_still(int node) override { host(node).stand_still(); }
  void go_on(int node) override { host(node).go_on(); }
  void say_late(int node, bool to_rendezvous, std::uint64_t draw) override;
  void run() override;
  void stop() override { stopped_ = true; }

  // Of every world: so that times read well.
  static Clock::time_point beginning() { return Clock::time_point(std::chrono::hours(1)); }

 private:
  VirtualNode& host(int index) { return *hosts_[static_cast<std::size_t>(index)]; }
  void dispatch(const VirtualEvent& event);
  void push(VirtualEvent::Kind kind, Clock::time_point at, std::uint64_t what,
            std::uint32_t generation = 0);

  Options options_;
  Chronicle& chronicle_;
  Clock::time_point now_ = beginning();
  EventQueue queue_;
  VirtualNetwork network_;
  VirtualRendezvous rendezvous_;
  VirtualNode::Ground ground_;
  std::vector<std::unique_ptr<VirtualNode>> hosts_;
  std::vector<std::function<void()>> calls_;
  std::uint32_t tick_generation_ = 0;
  bool stopped_ = false;
};

}  // namespace ddprun::ctl
