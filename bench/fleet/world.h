// SPDX-License-Identifier: Apache-2.0
// The world of emulated nodes: hosts, their links to the rendezvous, and time.
#pragma once

#include <functional>

#include "bench/fleet/emulated_node.h"

namespace ddprun::bench {

class World {
 public:
  virtual ~World() = default;

  virtual Clock::time_point now() const = 0;
  // Calls `then` from run(), at that time.
  virtual void at(Clock::time_point when, std::function<void()> then) = 0;

  // A new agent starts on host `options.index`; the one before has died or exited.
  virtual void begin(EmulatedNodeOptions options) = 0;
  // The last agent of that host, dead or alive; nullptr: none has begun.
  virtual EmulatedNode* node(int index) = 0;

  // The agent is killed: its warden ends the workers, the kernel its connections. After a power
  // loss nobody ends the connections.
  virtual void kill(int node, bool power_loss) = 0;
  // Nothing that the node sends (`up`) or is sent (`down`) arrives until heal(): then it does.
  virtual void cut(int node, bool up, bool down) = 0;
  virtual void heal(int node) = 0;
  // The agent's process stands still, its warden doesn't. Virtual time only.
  virtual void stand_still(int node) = 0;
  virtual void go_on(int node) = 0;
  // A message of an old round arrives late, at the rendezvous or at the node; which one follows
  // from `draw`. Virtual time only.
  virtual void say_late(int node, bool to_rendezvous, std::uint64_t draw) = 0;

  virtual void run() = 0;  // until stop()
  virtual void stop() = 0;
};

}  // namespace ddprun::bench
