// SPDX-License-Identifier: Apache-2.0
// Emulated nodes over real sockets against a real rendezvous, in real time. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <vector>

#include "bench/fleet/emulation.h"
#include "bench/fleet/relay.h"
#include "bench/fleet/world.h"

namespace ddprun::bench {

class RealWorld final : public World {
 public:
  // The way of a slow host, or of one that will be cut off, has a relay in it.
  RealWorld(Endpoint rendezvous, const WorldPlan& plan);
  ~RealWorld() override;

  Clock::time_point now() const override { return Clock::now(); }
  void at(Clock::time_point when, std::function<void()> then) override;
  void begin(EmulatedNodeOptions options) override;
  EmulatedNode* node(int index) override;
  void kill(int node, bool power_loss) override;
  void cut(int node, bool up, bool down) override;
  void heal(int node) override;
  void stand_still(int) override {}
  void go_on(int) override {}
  void say_late(int, bool, std::uint64_t) override {}
  void run() override { io_.run(); }
  void stop() override { io_.stop(); }

 private:
  class RealNode;
  struct Host {
    std::unique_ptr<Relay> relay;
    std::unique_ptr<RealNode> node;
  };

  const Endpoint rendezvous_;
  NodeObserver& observer_;
  boost::asio::io_context io_{1};
  std::vector<Host> hosts_;
  std::vector<std::unique_ptr<RealNode>> former_;  // their handlers may still be under way
};

}  // namespace ddprun::bench
