// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/emulated_node.h"

#include <algorithm>
#include <utility>

namespace ddprun::bench {

namespace event = membership::agent_event;
namespace action = membership::agent_action;

namespace {

// A question about a rank's output is answered whenever it comes, and that is all.
bool is_about_a_tail(const membership::AgentAction& todo) {
  const auto* send = variants::get_if<action::Send>(&todo);
  return variants::holds_alternative<action::ReadTail>(todo) ||
         (send != nullptr && variants::holds_alternative<membership::Tail>(send->envelope.message));
}

}  // namespace

EmulatedNode::EmulatedNode(EmulatedNodeOptions options, NodeHost& host, NodeObserver& observer)
    : options_(std::move(options)),
      host_(host),
      observer_(observer),
      runner_(options_.machine,
              {[this] { return host_.now(); },
               [this](const membership::AgentAction& todo) { perform(todo); },
               [this](std::optional<Clock::time_point> at) { host_.wake_at(Alarm::kMachine, at); },
               [](const std::string&, std::uint16_t) {
                 return std::uint16_t{1};  // nobody connects to it
               }}) {}

void EmulatedNode::hear(membership::AgentEvent link_event) {
  if (const auto* heard = variants::get_if<event::LinkMessage>(&link_event)) {
    if (variants::holds_alternative<membership::Welcome>(heard->envelope.message)) {
      observer_.welcomed(options_.index);
    }
    if (const auto* end = variants::get_if<membership::JobEnd>(&heard->envelope.message)) {
      observer_.told_the_end(options_.index, end->exit_code);
    }
    if (dead_) return;
  }
  runner_.handle(std::move(link_event));
}

void EmulatedNode::hear_late(membership::RendezvousEnvelope envelope) {
  if (exited()) return;
  const int before = num_effects_;
  const auto deadline = runner_.machine().next_deadline();
  hear(event::LinkMessage{std::move(envelope)});
  if (num_effects_ != before) {
    observer_.misled(options_.index, "its agent acted on it");
  } else if (runner_.machine().next_deadline() != deadline) {
    observer_.misled(options_.index, "its agent waits for something else");
  }
}

void EmulatedNode::ring(Alarm alarm) {
  if (dead_) return;
  switch (alarm) {
    case Alarm::kMachine:
      return runner_.handle(event::Timer{});
    case Alarm::kWorkers:
      return workers_due();
    case Alarm::kWarden:
      break;
  }
  warden_rings_.reset();
  if (!lease_ || work_ == Work::kNone) return;
  if (host_.now() < *lease_) {  // it was renewed meanwhile
    warden_rings_ = lease_;
    host_.wake_at(Alarm::kWarden, lease_);
    return;
  }
  empty();
  fenced_unsaid_ = true;
  due_at(host_.now());
}

void EmulatedNode::succeed() {
  if (work_ == Work::kRunning) runner_.handle(event::WorkersSucceeded{round_});
}

void EmulatedNode::fail(int exit_code) {
  if (work_ == Work::kNone) return;
  membership::WorkerFailure failure;
  failure.global_rank = first_global_rank_;
  failure.local_rank = 0;
  failure.node_rank = node_rank_;
  failure.host = options_.machine.join.host;
  failure.exit_code = exit_code;
  runner_.handle(event::WorkerFailed{round_, failure, host_.now()});
}

void EmulatedNode::die() {
  dead_ = true;
  runner_.drop();
  workers_due_.reset();
  if (work_ != Work::kNone) empty();
}

void EmulatedNode::perform(const membership::AgentAction& todo) {
  if (!is_about_a_tail(todo)) ++num_effects_;
  if (const auto* connect = variants::get_if<action::Connect>(&todo)) {
    host_.connect(connect->timeout);
  } else if (variants::holds_alternative<action::CloseLink>(todo)) {
    host_.close_link();
  } else if (const auto* send = variants::get_if<action::Send>(&todo)) {
    host_.send(send->envelope);
  } else if (const auto* keep = variants::get_if<action::SetKeepAlive>(&todo)) {
    host_.set_keep_alive(keep->timeout, keep->interval);
  } else if (const auto* start = variants::get_if<action::Spawn>(&todo)) {
    spawn(start->round);
  } else if (const auto* stopping = variants::get_if<action::StopWorkers>(&todo)) {
    stop(stopping->grace);
  } else if (const auto* leased = variants::get_if<action::Lease>(&todo)) {
    lease(leased->until);
  } else if (const auto* inspect = variants::get_if<action::Inspect>(&todo)) {
    runner_.handle(event::RanksInspected{inspect->round, inspect->inquiry, {}});
  } else if (const auto* wanted = variants::get_if<action::ReadTail>(&todo)) {
    runner_.handle(event::TailRead{wanted->request, {}, "an emulated node prints nothing"});
  } else if (const auto* exit = variants::get_if<action::Exit>(&todo)) {
    observer_.exited(options_.index, *exit);
  }
}

void EmulatedNode::spawn(const membership::StartRound& start) {
  round_ = start.round;
  node_rank_ = start.node_rank;
  first_global_rank_ = start.first_global_rank;
  work_ = Work::kStarting;
  stepped_ = fenced_unsaid_ = gone_unsaid_ = false;
  lease_.reset();
  due_at(host_.now() + options_.spawn_time);
  observer_.started(options_.index, start);
}

void EmulatedNode::stop(std::chrono::milliseconds grace) {
  if (!gone_unsaid_) observer_.told_to_stop(options_.index, round_);
  if (dead_) return;
  const bool was_asked = std::exchange(gone_unsaid_, true);
  fenced_unsaid_ = false;
  if (work_ == Work::kNone) return due_at(host_.now());
  const auto until = host_.now() + std::min(options_.stop_time, grace);
  if (was_asked && workers_due_ && *workers_due_ <= until) return;
  work_ = Work::kStopping;
  due_at(until);
}

void EmulatedNode::lease(std::optional<Clock::time_point> until) {
  lease_ = until;
  if (!until || (warden_rings_ && *warden_rings_ <= *until)) return;
  warden_rings_ = until;
  host_.wake_at(Alarm::kWarden, until);
}

void EmulatedNode::due_at(std::optional<Clock::time_point> at) {
  workers_due_ = at;
  host_.wake_at(Alarm::kWorkers, at);
}

void EmulatedNode::workers_due() {
  if (!workers_due_ || host_.now() < *workers_due_) return;
  workers_due_.reset();
  if (std::exchange(fenced_unsaid_, false)) {
    runner_.handle(event::WorkersFenced{round_});
    // It was told to stop them before.
    if (gone_unsaid_ && !workers_due_) due_at(host_.now());
  } else if (gone_unsaid_) {
    if (work_ != Work::kNone) empty();
    gone_unsaid_ = false;
    runner_.handle(event::WorkersGone{round_, stepped_ ? round_ : 0});
  } else if (work_ == Work::kStarting) {
    work_ = Work::kRunning;
    if (options_.step_time.count() > 0) due_at(host_.now() + options_.step_time);
    runner_.handle(event::WorkersRunning{round_});
    if (!dead_) observer_.running(options_.index, round_);
  } else if (work_ == Work::kRunning && !std::exchange(stepped_, true)) {
    runner_.handle(event::FirstStepDone{{round_, 0}});
  }
}

void EmulatedNode::empty() {
  work_ = Work::kNone;
  lease_.reset();
  observer_.emptied(options_.index, round_);
}

}  // namespace ddprun::bench
