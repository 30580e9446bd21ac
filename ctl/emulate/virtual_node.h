// SPDX-License-Identifier: Apache-2.0
// One host in virtual time: an emulated node, and its connection as AgentLink makes and keeps it.
// Pure.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ctl/emulate/emulated_node.h"
#include "ctl/emulate/event_queue.h"
#include "ctl/emulate/late_messages.h"
#include "ctl/emulate/plant.h"
#include "ctl/emulate/virtual_network.h"
#include "rendezvous/membership/keep_alive.h"

namespace ddprun::ctl {

class VirtualNode final : public NodeHost {
 public:
  // What all nodes stand on; outlives them.
  struct Ground {
    const Clock::time_point& now;
    EventQueue& queue;
    VirtualNetwork& network;
    NodeObserver& observer;
    Plant plant;
    std::function<void(ConnectionId)> connected;  // the rendezvous has a new connection
  };
  VirtualNode(Ground& ground, int index) : ground_(ground), index_(index) {}

  void begin(EmulatedNodeOptions options);
  EmulatedNode* node() { return node_.get(); }

  void handle(const VirtualEvent& event);  // one of its own
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
  void send(const membership::AgentEnvelope& envelope) override;
  void set_keep_alive(std::chrono::milliseconds timeout,
                      std::chrono::milliseconds interval) override;
  void wake_at(Alarm alarm, std::optional<Clock::time_point> at) override;

 private:
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
  void hear(membership::RendezvousEnvelope envelope);

  Ground& ground_;
  const int index_;
  std::unique_ptr<EmulatedNode> node_;
  std::vector<std::unique_ptr<EmulatedNode>> former_;  // one of their calls may be under way
  bool stands_still_ = false;
  std::vector<VirtualEvent> held_;                               // meanwhile
  std::vector<std::pair<ConnectionId, DownFrame>> held_frames_;  // likewise
  std::array<std::uint32_t, kNumAlarms> alarms_{};               // generations

  // The link.
  Link link_ = Link::kIdle;
  std::uint32_t generation_ = 0;
  ConnectionId connection_ = 0;  // if kOpen
  bool welcome_ = false;         // likewise
  Clock::time_point deadline_, attempt_deadline_, last_sign_;
  std::chrono::milliseconds backoff_{0};
  bool was_welcome_ = false, said_silence_ = false;
  membership::KeepAlive keep_alive_;
  WireNumbers numbers_;
};

}  // namespace ddprun::ctl
