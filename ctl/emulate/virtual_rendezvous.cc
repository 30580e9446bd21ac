// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/virtual_rendezvous.h"

#include <utility>

#include "common/log.h"
#include "ctl/emulate/late_messages.h"
#include "rendezvous/membership/codec.h"
#include "rendezvous/membership/keep_alive.h"
#include "rendezvous/membership/message_facts.h"

namespace ddprun::ctl {

namespace event = membership::event;
namespace action = membership::action;
using Kind = Plant::Kind;

VirtualRendezvous::VirtualRendezvous(VirtualNetwork& network, Chronicle& chronicle, Options options)
    : network_(network),
      chronicle_(chronicle),
      options_(std::move(options)),
      check_(options_.settings),
      table_({}, [next = 0]() mutable { return concat("session-", ++next); }) {}

void VirtualRendezvous::take(ConnectionId connection) { open_[connection] = false; }

membership::ConnectionFacts VirtualRendezvous::facts(ConnectionId connection) const {
  const int host = network_.host_of(connection);
  return {concat("10.", host >> 16, '.', (host >> 8) & 255, '.', host & 255), "10.255.255.1",
          false};
}

void VirtualRendezvous::hear(ConnectionId connection, UpFrame frame) {
  if (open_.count(connection) == 0) return;
  if (const auto* ping = std::get_if<PingFrame>(&frame)) {
    const auto now = options_.now();
    const auto clock =
        std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch());
    network_.send_down(connection, PingFrame{ping->payload}, now);
    network_.send_down(connection,
                       PingFrame{membership::KeepAlive::clock_pong(ping->payload, clock)}, now);
    feed(event::Heard{connection});
  } else if (std::holds_alternative<EndFrame>(frame)) {
    open_.erase(connection);
    network_.close_at_rendezvous(connection, options_.now());
    feed(event::Closed{connection});
  } else if (auto* late = std::get_if<LateFrame>(&frame)) {
    // It must change nothing.
    feed(event::Message{connection, std::move(late->envelope), facts(connection)}, true);
  } else {
    open_[connection] = true;
    auto& envelope = std::get<membership::AgentEnvelope>(frame);
    auto* join = std::get_if<membership::Join>(&envelope.message);
    if (join != nullptr && options_.plant.kind == Kind::kBudget) ++join->settings.max_restarts;
    feed(event::Message{connection, std::move(envelope), facts(connection)});
  }
}

void VirtualRendezvous::join_timeout(ConnectionId connection) {
  const auto found = open_.find(connection);
  if (found == open_.end() || found->second) return;
  open_.erase(found);
  network_.close_at_rendezvous(connection, options_.now());
}

void VirtualRendezvous::tick() {
  wake_at_.reset();
  feed(event::Tick{});
}

void VirtualRendezvous::feed(membership::Event next, bool is_late) {
  step(next, is_late);
  while (!waiting_.empty()) {
    membership::Event closed = std::move(waiting_.front());
    waiting_.pop_front();
    step(closed, false);
  }
  set_tick();
}

void VirtualRendezvous::step(membership::Event& next, bool is_late) {
  std::string before;
  const char* type = "";
  if (auto* message = std::get_if<event::Message>(&next)) {
    type = type_of(message->envelope.message);
    chronicle_.count(options_.now(), network_.host_of(message->connection),
                     message->envelope.message.index() + 1);
    if (is_late) {
      before = TableCheck::fingerprint(table_);
      if (options_.plant.kind == Kind::kStaleMessage && options_.plant.message == type) {
        *round_of(message->envelope.message) = round_;
      }
    }
  }
  membership::Actions actions = table_.step(next, options_.now());
  spoil(actions);
  std::optional<std::string> wrong;
  if (is_late && !before.empty() && !before.starts_with("ended")) {
    wrong = TableCheck::ignored(before, table_, actions);
    if (wrong) wrong = concat("a late ", type, " of an old round: ", *wrong);
  }
  if (!wrong) wrong = check_.stepped(table_, actions);
  for (const membership::Action& each : actions) perform(each);
  if (wrong) options_.violated(*wrong);
}

void VirtualRendezvous::perform(const membership::Action& todo) {
  if (const auto* send = std::get_if<action::Send>(&todo)) {
    if (open_.count(send->connection) == 0) return;
    network_.send_down(send->connection, send->envelope, options_.now());
  } else if (const auto* close = std::get_if<action::Close>(&todo)) {
    if (open_.erase(close->connection) == 0) return;
    network_.close_at_rendezvous(close->connection, options_.now());
    waiting_.emplace_back(event::Closed{close->connection});
  } else if (const auto* started = std::get_if<action::RoundStarted>(&todo)) {
    round_ = started->round;
    chronicle_.note(options_.now(), -1, "the rendezvous starts a round", round_);
  } else if (std::holds_alternative<action::JobOver>(todo)) {
    chronicle_.note(options_.now(), -1, "the rendezvous ends the job");
  }
}

void VirtualRendezvous::set_tick() {
  auto deadline = table_.next_deadline();
  if (options_.plant.kind == Kind::kNoDeadline && round_ > 1) deadline.reset();
  if (const auto wrong = TableCheck::waits(table_, deadline)) options_.violated(*wrong);
  if (deadline == wake_at_) return;
  wake_at_ = deadline;
  options_.wake_at(deadline);
}

// The planted bugs of what it says.
void VirtualRendezvous::spoil(membership::Actions& actions) {
  const Kind kind = options_.plant.kind;
  if (spoilt_ ||
      (kind != Kind::kRankTwice && kind != Kind::kRankMissing && kind != Kind::kOtherVerdict)) {
    return;
  }
  for (membership::Action& each : actions) {
    auto* send = std::get_if<action::Send>(&each);
    if (send == nullptr) continue;
    auto* start = std::get_if<membership::StartRound>(&send->envelope.message);
    auto* end = std::get_if<membership::JobEnd>(&send->envelope.message);
    if (start != nullptr && start->round > 1 && start->node_rank == 1) {
      spoilt_ = kind != Kind::kOtherVerdict;
      if (kind == Kind::kRankTwice) start->node_rank = start->first_global_rank = 0;
      if (kind == Kind::kRankMissing) each = action::Log{};
    } else if (end != nullptr && kind == Kind::kOtherVerdict) {
      spoilt_ = true;
      end->exit_code = 3;
    }
    if (spoilt_) return;
  }
}

}  // namespace ddprun::ctl
