// SPDX-License-Identifier: Apache-2.0
// One host in virtual time: an emulated node, and its connection, which is made and kept as
// AgentLink does. Pure.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bench/fleet/emulated_node.h"
#include "rendezvous/wire/keep_alive.h"
#include "tests/rendezvous/membership/world/event_queue.h"
#include "tests/rendezvous/membership/world/late_messages.h"
#include "tests/rendezvous/membership/world/planted_bug.h"
#include "tests/rendezvous/membership/world/virtual_network.h"

namespace ddprun::membership::testing {

class VirtualNode final : public bench::NodeHost, private bench::NodeObserver {
 public:
  // The things that all nodes use. It outlives them.
  struct Ground {
    const Clock::time_point& now;
    EventQueue& queue;
    VirtualNetwork& network;
    bench::NodeObserver& observer;
    PlantedBug bug;
    std::function<void(ConnectionId)> connected;  // the rendezvous has a new connection
    std::function<void(Clock::time_point, std::function<void()>)> at;  // the world's scheduler
  };
  VirtualNode(Ground& ground, int index) : ground_(ground), index_(index) {}

  void begin(bench::EmulatedNodeOptions options);
  bench::EmulatedNode* node() { return node_.get(); }

  void handle(const VirtualEvent& event);  // an event of this node
  void arrived(ConnectionId connection, DownFrame frame);
  void kill(bool power_loss);
  void stand_still() { stands_still_ = true; }
  void go_on();
  // See World::say_late.
  void say_late(bool to_rendezvous, std::uint64_t draw);

  // Whether nothing would ever happen to this node again.
  bool waits_for_nothing() const;

  Clock::time_point now() const override { return ground_.now; }
  void connect(std::chrono::milliseconds timeout) override;
  void close_link() override;
  void send(const AgentEnvelope& envelope) override;
  void set_keep_alive(std::chrono::milliseconds timeout,
                      std::chrono::milliseconds interval) override;
  void wake_at(bench::Alarm alarm, std::optional<Clock::time_point> at) override;

 private:
  // Reports of the node. A planted bug may change them.
  void welcomed(int node) override { ground_.observer.welcomed(node); }
  void started(int node, const StartRound& start) override {
    ground_.observer.started(node, start);
  }
  void running(int node, std::uint64_t round) override { ground_.observer.running(node, round); }
  void told_to_stop(int node, std::uint64_t round) override {
    ground_.observer.told_to_stop(node, round);
  }
  void emptied(int node, std::uint64_t round) override;
  void told_the_end(int node, int exit_code) override {
    ground_.observer.told_the_end(node, exit_code);
  }
  void exited(int node, const agent_action::Exit& exit) override {
    ground_.observer.exited(node, exit);
  }
  void misled(int node, const char* effect) override { ground_.observer.misled(node, effect); }

  enum class Link { kIdle, kWaiting, kAttempting, kOpening, kOpen };

  void push(VirtualEvent::Kind kind, Clock::time_point at, std::uint32_t generation,
            std::uint64_t what = 0);
  void link_due(Link next, Clock::time_point at);
  void wait_and_attempt();
  void attempt();
  void opened();
  void attempt_failed();
  void ping();
  void down(bool silence, const char* reason);
  void reset();
  void hear(RendezvousEnvelope envelope);

  Ground& ground_;
  const int index_;
  std::unique_ptr<bench::EmulatedNode> node_;
  // A call of one of them may be under way.
  std::vector<std::unique_ptr<bench::EmulatedNode>> former_;
  bool stands_still_ = false;
  std::vector<VirtualEvent> held_;                               // events that came meanwhile
  std::vector<std::pair<ConnectionId, DownFrame>> held_frames_;  // frames that came meanwhile
  std::array<std::uint32_t, bench::kNumAlarms> alarms_{};        // the generation of each alarm

  // The state of the link.
  Link link_ = Link::kIdle;
  std::uint32_t generation_ = 0;
  ConnectionId connection_ = 0;  // valid if kOpen
  bool welcome_ = false;         // valid if kOpen
  Clock::time_point deadline_, attempt_deadline_, last_sign_;
  std::chrono::milliseconds backoff_{0};
  bool was_welcome_ = false, said_silence_ = false;
  KeepAlive keep_alive_;
  WireNumbers numbers_;
};

}  // namespace ddprun::membership::testing
