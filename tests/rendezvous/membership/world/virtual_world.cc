// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/virtual_world.h"

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/wire/keep_alive.h"

namespace ddprun::membership::testing {
namespace {

using EventKind = VirtualEvent::Kind;

// The time after which TCP sends again into a way that was cut.
constexpr std::chrono::milliseconds kResend{200};
constexpr std::chrono::milliseconds kJoinTimeout{10'000};  // the same as AgentHub's
constexpr std::size_t kFewHosts = 64;  // so few that all jobs can be looked at after each step

}  // namespace

VirtualWorld::VirtualWorld(const bench::WorldPlan& plan, const Options& options)
    : log_(*plan.log),
      violated_(plan.violated),
      network_(
          static_cast<int>(plan.latencies.size()),
          {[this](Clock::time_point at, bool up, ConnectionId connection) {
             push(up ? EventKind::kUp : EventKind::kDown, at, connection);
           },
           [this](ConnectionId connection, UpFrame frame) { hear(connection, std::move(frame)); },
           [this](int index, ConnectionId connection, DownFrame frame) {
             host(index).arrived(connection, std::move(frame));
           }}),
      rendezvous_({options.journalled, std::chrono::milliseconds(0),
                   plan.latencies.size() <= kFewHosts, options.bug, violated_}),
      ground_{now_,
              queue_,
              network_,
              *plan.observer,
              options.bug,
              [this](ConnectionId connection) {
                open_[connection] = false;
                push(EventKind::kJoinTimeout, now_ + kJoinTimeout, connection);
              },
              [this](Clock::time_point when, std::function<void()> then) {
                at(when, std::move(then));
              }} {
  for (std::size_t i = 0; i < plan.latencies.size(); ++i) {
    network_.set_latency(static_cast<int>(i), plan.latencies[i]);
    hosts_.push_back(std::make_unique<VirtualNode>(ground_, static_cast<int>(i)));
  }
}

void VirtualWorld::push(EventKind kind, Clock::time_point at, std::uint64_t what,
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
  push(EventKind::kCall, when, calls_.size() - 1);
}

void VirtualWorld::begin(bench::EmulatedNodeOptions options) {
  host(options.index).begin(std::move(options));
}

void VirtualWorld::heal(int node) { network_.heal(node, kResend, now_); }

void VirtualWorld::say_late(int node, bool to_rendezvous, std::uint64_t draw) {
  host(node).say_late(to_rendezvous, draw);
}

void VirtualWorld::run() {
  while (!stopped_) {
    if (queue_.empty()) return violated_("nothing will ever happen again");
    const VirtualEvent event = queue_.pop();
    now_ = event.at;
    dispatch(event);
  }
}

void VirtualWorld::dispatch(const VirtualEvent& event) {
  log_.count(now_, event.node, (static_cast<std::uint64_t>(event.kind) << 8) | event.what);
  int node = event.node;
  switch (event.kind) {
    case EventKind::kCall: {
      const auto then = std::exchange(calls_[event.what], nullptr);
      then();
      return;
    }
    case EventKind::kUp:
      network_.arrive(true, event.what);
      return;
    case EventKind::kDown:
      node = network_.host_of(event.what);
      network_.arrive(false, event.what);
      break;
    case EventKind::kTick:
      if (event.generation != tick_generation_) return;
      tick_at_.reset();
      feed(event::Tick{});
      return;
    case EventKind::kJoinTimeout: {
      const auto found = open_.find(event.what);
      if (found == open_.end() || found->second) return;
      open_.erase(found);
      network_.close_at_rendezvous(event.what, now_);
      return;
    }
    case EventKind::kAlarm:
    case EventKind::kLink:
    case EventKind::kPing:
      host(node).handle(event);
      break;
  }
  if (node >= 0 && host(node).waits_for_nothing()) {
    violated_(concat("node ", node, " waits without a deadline"));
  }
}

// ---- the rendezvous' end ----

void VirtualWorld::hear(ConnectionId connection, UpFrame frame) {
  if (open_.count(connection) == 0) return;
  const int host = network_.host_of(connection);
  const ConnectionFacts facts{concat("10.", host >> 16, '.', (host >> 8) & 255, '.', host & 255),
                              "10.255.255.1", 0, false};
  if (const auto* ping = variants::get_if<PingFrame>(&frame)) {
    const auto clock =
        std::chrono::duration_cast<std::chrono::microseconds>(now_.time_since_epoch());
    network_.send_down(connection, PingFrame{ping->payload}, now_);
    network_.send_down(connection, PingFrame{KeepAlive::clock_pong(ping->payload, clock)}, now_);
    feed(event::Heard{connection});
  } else if (variants::holds_alternative<EndFrame>(frame)) {
    open_.erase(connection);
    network_.close_at_rendezvous(connection, now_);
    feed(event::Closed{connection});
  } else if (auto* late = variants::get_if<LateFrame>(&frame)) {
    // The message as it leaves the wire. Before that it may have been too long.
    feed(event::Message{connection, decode_agent_message(encode(late->envelope)), facts}, true);
  } else {
    open_[connection] = true;
    feed(event::Message{connection, std::move(variants::get<AgentEnvelope>(frame)), facts});
  }
}

void VirtualWorld::feed(const Event& event, bool is_late) {
  step(event, is_late);
  while (!waiting_.empty()) {
    const Event closed = std::move(waiting_.front());
    waiting_.pop_front();
    step(closed, false);
  }
  set_tick();
}

void VirtualWorld::step(const Event& event, bool is_late) {
  if (const auto* message = variants::get_if<event::Message>(&event)) {
    log_.count(now_, network_.host_of(message->connection), message->envelope.message.index() + 1);
  }
  for (const Action& each : rendezvous_.step(event, now_, is_late)) perform(each);
}

void VirtualWorld::perform(const Action& todo) {
  if (const auto* send = variants::get_if<action::Send>(&todo)) {
    if (open_.count(send->connection) == 0) return;
    network_.send_down(send->connection, send->envelope, now_);
  } else if (const auto* close = variants::get_if<action::Close>(&todo)) {
    if (open_.erase(close->connection) == 0) return;
    network_.close_at_rendezvous(close->connection, now_);
    waiting_.emplace_back(event::Closed{close->connection});
  } else if (const auto* started = variants::get_if<action::RoundStarted>(&todo)) {
    log_.note(now_, -1, "the rendezvous starts a round", started->round);
  } else if (variants::holds_alternative<action::JobOver>(todo)) {
    log_.note(now_, -1, "the rendezvous ends the job");
  }
}

void VirtualWorld::set_tick() {
  const auto deadline = rendezvous_.next_deadline();
  if (deadline == tick_at_) return;
  tick_at_ = deadline;
  ++tick_generation_;
  if (deadline) push(EventKind::kTick, *deadline, 0, tick_generation_);
}

void VirtualWorld::restart_rendezvous() {
  log_.note(now_, -1, "the rendezvous is started again");
  for (const auto& [connection, joined] : std::exchange(open_, {})) {
    network_.close_at_rendezvous(connection, now_);
  }
  waiting_.clear();
  rendezvous_.restart(now_);
  set_tick();
}

}  // namespace ddprun::membership::testing
