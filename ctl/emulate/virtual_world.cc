// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/virtual_world.h"

#include <utility>

#include "common/log.h"

namespace ddprun::ctl {

using Kind = VirtualEvent::Kind;

namespace {

// How long TCP waits before it sends again into a way that was cut.
constexpr std::chrono::milliseconds kResend{200};
constexpr std::chrono::milliseconds kJoinTimeout{10'000};  // AgentHub's

}  // namespace

VirtualWorld::VirtualWorld(Options options, NodeObserver& observer, Chronicle& chronicle)
    : options_(std::move(options)),
      chronicle_(chronicle),
      network_(options_.num_hosts, {[this](Clock::time_point at, bool up, ConnectionId connection) {
                                      push(up ? Kind::kUp : Kind::kDown, at, connection);
                                    },
                                    [this](ConnectionId connection, UpFrame frame) {
                                      rendezvous_.hear(connection, std::move(frame));
                                    },
                                    [this](int index, ConnectionId connection, DownFrame frame) {
                                      host(index).arrived(connection, std::move(frame));
                                    }}),
      rendezvous_(network_, chronicle,
                  {options_.settings, options_.plant, [this] { return now_; },
                   [this](std::optional<Clock::time_point> at) {
                     ++tick_generation_;
                     if (at) push(Kind::kTick, *at, 0, tick_generation_);
                   },
                   options_.violated}),
      ground_{now_, queue_, network_, observer, options_.plant, [this](ConnectionId connection) {
                rendezvous_.take(connection);
                push(Kind::kJoinTimeout, now_ + kJoinTimeout, connection);
              }} {
  for (int i = 0; i < options_.num_hosts; ++i) {
    hosts_.push_back(std::make_unique<VirtualNode>(ground_, i));
  }
}

void VirtualWorld::set_latency(int node, std::chrono::microseconds each_way) {
  network_.set_latency(node, each_way);
}

void VirtualWorld::push(Kind kind, Clock::time_point at, std::uint64_t what,
                        std::uint32_t generation) {
  VirtualEvent event;
  event.at = std::max(at, now_);
  event.kind = kind;
  event.what = what;
  event.generation = generation;
  queue_.push(event);
}

void VirtualWorld::at(Clock::time_point when, std::function<void()> then) {
  calls_.push_back(std::move(then));
  push(Kind::kCall, when, calls_.size() - 1);
}

void VirtualWorld::begin(EmulatedNodeOptions options) { host(options.index).begin(options); }

void VirtualWorld::heal(int node) { network_.heal(node, kResend, now_); }

void VirtualWorld::say_late(int node, bool to_rendezvous, std::uint64_t draw) {
  host(node).say_late(to_rendezvous, draw);
}

void VirtualWorld::run() {
  while (!stopped_) {
    if (queue_.empty()) {
      options_.violated("nothing will ever happen again");
      return;
    }
    const VirtualEvent event = queue_.pop();
    now_ = event.at;
    dispatch(event);
  }
}

void VirtualWorld::dispatch(const VirtualEvent& event) {
  chronicle_.count(now_, event.node, (static_cast<std::uint64_t>(event.kind) << 8) | event.what);
  int node = event.node;
  switch (event.kind) {
    case Kind::kCall: {
      const auto then = std::exchange(calls_[event.what], nullptr);
      then();
      return;
    }
    case Kind::kUp:
      network_.arrive(true, event.what);
      return;
    case Kind::kDown:
      node = network_.host_of(event.what);
      network_.arrive(false, event.what);
      break;
    case Kind::kTick:
      if (event.generation == tick_generation_) rendezvous_.tick();
      return;
    case Kind::kJoinTimeout:
      rendezvous_.join_timeout(event.what);
      return;
    case Kind::kAlarm:
    case Kind::kLink:
    case Kind::kPing:
      host(node).handle(event);
      break;
  }
  if (node >= 0 && host(node).waits_for_nothing()) {
    options_.violated(concat("node ", node, " waits without a deadline"));
  }
}

}  // namespace ddprun::ctl
