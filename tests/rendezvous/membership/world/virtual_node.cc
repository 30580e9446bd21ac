// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/virtual_node.h"

#include <algorithm>
#include <utility>

#include "rendezvous/messages/codec.h"

namespace ddprun::membership::testing {

using std::chrono::milliseconds;

namespace {

using EventKind = VirtualEvent::Kind;
using BugKind = PlantedBug::Kind;

// The same as AgentLink's.
constexpr milliseconds kFirstBackoff{5};
constexpr milliseconds kLastBackoff{500};
constexpr milliseconds kAttemptLimit{5'000};

constexpr milliseconds kLingering{50};  // the time of a planted bug

}  // namespace

void VirtualNode::begin(bench::EmulatedNodeOptions options) {
  if (node_) former_.push_back(std::move(node_));
  for (std::uint32_t& generation : alarms_) ++generation;
  stands_still_ = false;
  held_.clear();
  held_frames_.clear();
  keep_alive_ = {};
  numbers_ = {};
  backoff_ = milliseconds(0);
  was_welcome_ = false;
  bench::NodeObserver& told = *this;
  node_ = std::make_unique<bench::EmulatedNode>(std::move(options), *this, told);
  node_->start();
}

void VirtualNode::push(EventKind kind, Clock::time_point at, std::uint32_t generation,
                       std::uint64_t what) {
  VirtualEvent next;
  next.at = std::max(at, ground_.now);
  next.kind = kind;
  next.node = index_;
  next.generation = generation;
  next.what = what;
  ground_.queue.push(next);
}

void VirtualNode::wake_at(bench::Alarm alarm, std::optional<Clock::time_point> at) {
  const auto which = static_cast<std::size_t>(alarm);
  if (alarm == bench::Alarm::kWarden && ground_.bug.kind == BugKind::kUnfenced) return;
  ++alarms_[which];
  if (at) push(EventKind::kAlarm, *at, alarms_[which], which);
}

void VirtualNode::handle(const VirtualEvent& due) {
  if (node_->dead()) return;
  const bool is_alarm = due.kind == EventKind::kAlarm;
  if (due.generation != (is_alarm ? alarms_[due.what] : generation_)) return;
  const auto alarm = static_cast<bench::Alarm>(due.what);
  if (stands_still_ && !(is_alarm && alarm == bench::Alarm::kWarden)) {
    held_.push_back(due);
    return;
  }
  if (is_alarm) return node_->ring(alarm);
  if (due.kind == EventKind::kPing) return ping();
  switch (link_) {
    case Link::kWaiting:
      return attempt();
    case Link::kAttempting:
      return attempt_failed();
    case Link::kOpening:
      return opened();
    case Link::kIdle:
    case Link::kOpen:
      return;
  }
}

void VirtualNode::go_on() {
  if (!std::exchange(stands_still_, false)) return;
  // Chance decides which of the two its event loop sees first.
  const bool timers_first = ground_.now.time_since_epoch().count() / 1000 % 2 == 0;
  const auto timers = std::exchange(held_, {});
  auto frames = std::exchange(held_frames_, {});
  for (std::size_t i = 0; timers_first && i < timers.size(); ++i) handle(timers[i]);
  for (auto& [connection, frame] : frames) arrived(connection, std::move(frame));
  for (std::size_t i = 0; !timers_first && i < timers.size(); ++i) handle(timers[i]);
}

void VirtualNode::kill(bool power_loss) {
  if (node_->dead()) return;
  stands_still_ = false;
  held_.clear();
  held_frames_.clear();
  node_->die();
  if (link_ == Link::kOpen) {
    ground_.network.close_at_host(connection_, !power_loss, ground_.now);
  }
  reset();
}

void VirtualNode::emptied(int node, std::uint64_t round) {
  if (ground_.bug.kind != BugKind::kLingering) return ground_.observer.emptied(node, round);
  ground_.at(ground_.now + kLingering,
             [this, node, round] { ground_.observer.emptied(node, round); });
}

bool VirtualNode::waits_for_nothing() const {
  return node_ && !node_->dead() && !node_->exited() && link_ == Link::kIdle &&
         !node_->has_deadline();
}

// ---- the link, as agent/link/agent_link.cc has it ----

void VirtualNode::connect(milliseconds timeout) {
  if (link_ != Link::kIdle) return;
  if (ground_.bug.kind == BugKind::kNoDeadlineAgent && was_welcome_) return;
  deadline_ = ground_.now + timeout;
  said_silence_ = false;
  if (std::exchange(was_welcome_, false)) backoff_ = milliseconds(0);
  wait_and_attempt();
}

void VirtualNode::link_due(Link next, Clock::time_point at) {
  link_ = next;
  push(EventKind::kLink, at, ++generation_);
}

void VirtualNode::wait_and_attempt() {
  const auto wait = std::min<Clock::duration>(backoff_, deadline_ - ground_.now);
  backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLastBackoff);
  link_due(Link::kWaiting, ground_.now + std::max(wait, Clock::duration::zero()));
}

void VirtualNode::attempt() {
  Clock::duration limit = kAttemptLimit;
  if (const auto silence = keep_alive_.timeout())
    limit = std::min<Clock::duration>(limit, *silence);
  attempt_deadline_ = std::min(deadline_, ground_.now + limit);
  const auto answered = ground_.now + 4 * ground_.network.latency(index_);
  if (ground_.network.is_cut(index_) || answered > attempt_deadline_) {
    link_due(Link::kAttempting, attempt_deadline_);
  } else {
    link_due(Link::kOpening, answered);
  }
}

void VirtualNode::attempt_failed() {
  if (ground_.now >= deadline_) {
    reset();
    node_->hear(agent_event::LinkFailed{"no answer"});
    return;
  }
  wait_and_attempt();
  const auto silence = keep_alive_.timeout();
  if (silence && !said_silence_ && ground_.now - last_sign_ >= *silence) {
    said_silence_ = true;
    node_->hear(agent_event::LinkDown{ground_.bug.kind != BugKind::kUnfenced, "no answer"});
  }
}

void VirtualNode::opened() {
  if (ground_.network.is_cut(index_)) return link_due(Link::kAttempting, attempt_deadline_);
  ++generation_;
  link_ = Link::kOpen;
  welcome_ = false;
  connection_ = ground_.network.connect(index_);
  last_sign_ = ground_.now;
  keep_alive_.opened(ground_.now);
  ground_.connected(connection_);
  node_->hear(agent_event::LinkUp{"10.0.0.1", "10.255.255.1"});
}

void VirtualNode::close_link() {
  if (link_ == Link::kOpen) ground_.network.close_at_host(connection_, true, ground_.now);
  reset();
}

void VirtualNode::reset() {
  ++generation_;
  link_ = Link::kIdle;
  welcome_ = false;
}

void VirtualNode::down(bool silence, const char* reason) {
  if (silence) send({0, 0, CutOff{}});
  ground_.network.close_at_host(connection_, true, ground_.now);
  reset();
  const bool is_told = silence && ground_.bug.kind != BugKind::kUnfenced;
  node_->hear(agent_event::LinkDown{is_told, reason});
}

void VirtualNode::send(const AgentEnvelope& envelope) {
  if (link_ != Link::kOpen) return;
  AgentEnvelope sent = envelope;
  for (auto& again : numbers_.out(sent)) {
    ground_.network.send_up(connection_, LateFrame{std::move(again)}, ground_.now);
  }
  ground_.network.send_up(connection_, std::move(sent), ground_.now);
}

void VirtualNode::set_keep_alive(milliseconds timeout, milliseconds interval) {
  keep_alive_.set(timeout, interval);
  was_welcome_ = true;
  if (link_ == Link::kOpen) ping();
}

void VirtualNode::ping() {
  if (link_ != Link::kOpen) return;
  if (keep_alive_.is_silent(ground_.now)) return down(true, "nothing was heard");
  ground_.network.send_up(connection_, PingFrame{keep_alive_.ping(ground_.now)}, ground_.now);
  push(EventKind::kPing, keep_alive_.next(ground_.now), generation_);
}

void VirtualNode::arrived(ConnectionId connection, DownFrame frame) {
  if (link_ != Link::kOpen || connection != connection_) return;
  if (stands_still_) {
    held_frames_.emplace_back(connection, std::move(frame));
    return;
  }
  if (const auto* pong = variants::get_if<PingFrame>(&frame)) {
    last_sign_ = ground_.now;
    if (auto news = keep_alive_.ponged(pong->payload, ground_.now)) node_->hear(std::move(*news));
  } else if (variants::holds_alternative<EndFrame>(frame)) {
    down(false, "the peer closed the connection");
  } else {
    hear(std::move(variants::get<RendezvousEnvelope>(frame)));
  }
}

void VirtualNode::hear(RendezvousEnvelope envelope) {
  const bool welcome = variants::holds_alternative<Welcome>(envelope.message);
  numbers_.in(envelope);
  if (welcome) {
    welcome_ = true;
    numbers_.welcomed();
  }
  node_->hear(agent_event::LinkMessage{std::move(envelope)});
  if (!welcome || link_ != Link::kOpen) return;
  for (auto& again : numbers_.rest()) {
    ground_.network.send_up(connection_, LateFrame{std::move(again)}, ground_.now);
  }
}

void VirtualNode::say_late(bool to_rendezvous, std::uint64_t draw) {
  if (!node_ || node_->dead() || node_->exited() || stands_still_) return;
  if (link_ != Link::kOpen || !welcome_ || node_->round() < 2) return;
  const std::uint64_t round = 1 + (draw / 16) % (node_->round() - 1);
  const bool with_tail = draw / 1024 % 4 == 0;  // this message is sent beside the other one
  if (to_rendezvous) {
    const auto send = [this](AgentMessage message) {
      ground_.network.send_up(connection_, LateFrame{numbers_.put_in(std::move(message))},
                              ground_.now);
    };
    send(late_agent_message(draw, round));
    if (with_tail) send(late_tail(draw));
  } else if (ground_.bug.kind == BugKind::kUnfoundedStop) {
    node_->hear(agent_event::LinkMessage{{0, 0, StopRound{node_->round(), "a whim"}}});
  } else {
    RendezvousMessage message = late_rendezvous_message(draw, round);
    if (ground_.bug.kind == BugKind::kStaleMessage && ground_.bug.message == type_of(message)) {
      const bool starts = variants::holds_alternative<StartRound>(message);
      *round_of(message) = node_->round() + (starts ? 1 : 0);
    }
    node_->hear_late({0, 0, std::move(message)});
    if (with_tail) node_->hear_late({0, 0, late_tail_wanted(draw, round)});
  }
}

}  // namespace ddprun::membership::testing
