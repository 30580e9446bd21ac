// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/real_world.h"

#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

#include "agent/link/agent_link.h"

namespace ddprun::bench {

class RealWorld::RealNode final : public NodeHost {
 public:
  RealNode(boost::asio::io_context& io, const Endpoint& target, EmulatedNodeOptions options,
           NodeObserver& observer)
      : link_(io, {target},
              [this](const membership::AgentEvent& event) {
                if (!node_.dead()) node_.hear(event);
              }),
        timers_{boost::asio::steady_timer(io), boost::asio::steady_timer(io),
                boost::asio::steady_timer(io)},
        node_(std::move(options), *this, observer) {}

  EmulatedNode& node() { return node_; }

  void die() {
    node_.die();
    for (auto& timer : timers_) timer.cancel();
    link_.close();
  }

  Clock::time_point now() const override { return Clock::now(); }
  void connect(std::chrono::milliseconds timeout) override { link_.connect(timeout); }
  void close_link() override { link_.close(); }
  void send(const membership::AgentEnvelope& envelope) override { link_.send(envelope); }
  void set_keep_alive(std::chrono::milliseconds timeout,
                      std::chrono::milliseconds interval) override {
    link_.set_keep_alive(timeout, interval);
  }
  void wake_at(Alarm alarm, std::optional<Clock::time_point> at) override {
    auto& timer = timers_[static_cast<std::size_t>(alarm)];
    if (!at) {
      timer.cancel();
      return;
    }
    timer.expires_at(*at);
    timer.async_wait([this, alarm](const boost::system::error_code& error) {
      if (!error) node_.ring(alarm);
    });
  }

 private:
  membership::AgentLink link_;
  boost::asio::steady_timer timers_[kNumAlarms];
  EmulatedNode node_;
};

RealWorld::RealWorld(Endpoint rendezvous, const WorldPlan& plan)
    : rendezvous_(std::move(rendezvous)), observer_(*plan.observer), hosts_(plan.latencies.size()) {
  const auto put_relay = [&](int node, std::chrono::microseconds delay) {
    auto& relay = hosts_[static_cast<std::size_t>(node)].relay;
    if (!relay) relay = std::make_unique<Relay>(io_, rendezvous_, delay);
  };
  for (const int node : plan.slow) {
    put_relay(node, plan.latencies[static_cast<std::size_t>(node)]);
  }
  for (const int node : plan.cut) put_relay(node, std::chrono::microseconds(0));
}

RealWorld::~RealWorld() = default;

void RealWorld::at(Clock::time_point when, std::function<void()> then) {
  const auto timer = std::make_shared<boost::asio::steady_timer>(io_, when);
  timer->async_wait([timer, then = std::move(then)](const boost::system::error_code&) { then(); });
}

void RealWorld::begin(EmulatedNodeOptions options) {
  Host& host = hosts_[static_cast<std::size_t>(options.index)];
  if (host.node) former_.push_back(std::move(host.node));
  host.node = std::make_unique<RealNode>(io_, host.relay ? host.relay->endpoint() : rendezvous_,
                                         std::move(options), observer_);
  host.node->node().start();
}

EmulatedNode* RealWorld::node(int index) {
  const Host& host = hosts_[static_cast<std::size_t>(index)];
  return host.node ? &host.node->node() : nullptr;
}

void RealWorld::kill(int node, bool) { hosts_[static_cast<std::size_t>(node)].node->die(); }

void RealWorld::cut(int node, bool up, bool down) {
  if (auto& relay = hosts_[static_cast<std::size_t>(node)].relay) relay->hold(up, down);
}

void RealWorld::heal(int node) { cut(node, false, false); }

}  // namespace ddprun::bench
