// SPDX-License-Identifier: Apache-2.0
// The round's workers, and the listener of its store.
#include "rendezvous/membership/agent_machine_impl.h"

#include <algorithm>
#include <utility>

namespace ddprun::membership {

using agent_action::BindStore;
using agent_action::Lease;
using agent_action::RoundOver;
using agent_action::Send;
using agent_action::StopWorkers;

void AgentMachine::Impl::on(const agent_event::WorkersRunning& event) {
  if (event.round == round_ && workers_ == Workers::kLive) say(WorkersRunning{round_});
}

void AgentMachine::Impl::on(const agent_event::WorkerFailed& event) {
  if (event.round != round_ || workers_ == Workers::kNone || failed_) return;
  // One that comes late died before its node was told to stop, so it may be the cause.
  if (exit_ && workers_ == Workers::kStopping) return;
  failed_ = true;
  failure_ = event.failure;
  if (event.died_at) date_failure(*event.died_at);
  if (exit_) return;
  say(WorkerFailed{round_, failure_});
  if (link_ != Link::kUp) stop_in_order();
}

void AgentMachine::Impl::on(const agent_event::WorkersSucceeded& event) {
  if (event.round == round_ && workers_ == Workers::kLive) say(WorkersSucceeded{round_});
}

void AgentMachine::Impl::date_failure(TimePoint died_at) {
  const auto moment = clock_.remote(died_at);
  if (!moment) return;
  failure_.died_at_us = std::max<std::int64_t>(moment->at.count(), 0);
  failure_.clock_error_us = moment->error.count();
}

void AgentMachine::Impl::on(const agent_event::WorkersFenced& event) {
  if (event.round != round_ || !are_on()) return;
  tell(LogLevel::kWarning,
       "this ddprun stood still for longer than the keep-alive time allows; its workers were "
       "killed, for the others may have gone on without them");
  stop_workers(std::chrono::milliseconds{0});
}

void AgentMachine::Impl::on(const agent_event::WorkerAsks& event) {
  if (event.request.round == round_ && workers_ == Workers::kLive) say(event.request);
}

void AgentMachine::Impl::on(const agent_event::WorkersLeft& event) {
  if (event.round == round_ && workers_ == Workers::kLive) say(WorkersLeft{round_});
}

void AgentMachine::Impl::on(const agent_event::Warned& event) {
  if (exit_) return;
  if (!session_.empty()) return say(event.warning);
  const bool for_good = event.warning.kind == Preempted::Kind::kTimeLimit;
  decide_here(for_good ? ExitCode::kTimeLimit : ExitCode::kRetryable,
              "this node " + event.warning.reason);
}

void AgentMachine::Impl::on(const agent_event::FirstStepDone& event) {
  if (event.first_step.round == round_ && workers_ == Workers::kLive) say(event.first_step);
}

void AgentMachine::Impl::on(const agent_event::WorkersGone& event) {
  if (event.round != round_ || workers_ != Workers::kStopping) return;
  workers_ = Workers::kNone;
  if (declined_ > round_) {
    close_store();
    round_ = declined_;
  }
  last_step_ = event.last_step;
  gone_at_ = now_;
  stop_deadline_.reset();
  if (exit_) return;  // the store lives on: other nodes' workers may not be gone yet
  say_stopped();
}

void AgentMachine::Impl::on(const agent_event::WorkersKept& event) {
  if (event.round != round_ || workers_ != Workers::kKeeping) return;
  workers_ = Workers::kKept;
  keep_deadline_.reset();
  num_kept_ = event.count;
  last_step_ = event.last_step;
  gone_at_ = now_;
  say_stopped();
}

void AgentMachine::Impl::on(const agent_event::WorkersNotKept& event) {
  if (event.round == round_ && workers_ == Workers::kKeeping) not_kept(event.why);
}

void AgentMachine::Impl::not_kept(const std::string& why) {
  keep_deadline_.reset();
  const std::string what = concat("its workers can't go on in place: ", why);
  emit(RoundOver{round_, what, false});
  tell(LogLevel::kWarning, what);
  stop_in_order();
}

void AgentMachine::Impl::say_stopped() {
  if (needs_store()) {
    stopped_unsaid_ = true;
    bind_store();
  } else {
    say(stopped_message());
  }
}

WorkersStopped AgentMachine::Impl::stopped_message() const {
  const auto moment = clock_.remote(gone_at_);
  return {round_, bound_port_, last_step_,
          moment ? std::max<std::int64_t>(moment->at.count(), 0) : 0,
          workers_ == Workers::kKept ? num_kept_ : 0};
}

void AgentMachine::Impl::on(const agent_event::RankStalled& event) {
  const Stalled stalled{round_, event.report};
  if (event.round == round_ && workers_ == Workers::kLive && link_ != Link::kUp) {
    stalled_unsaid_ = stalled;
  } else {
    mention(event.round, stalled);
  }
}

// The other nodes' ranks hear of it through the rendezvous, before the end of the round.
void AgentMachine::Impl::on(const agent_event::RecordsWanted& event) {
  if (event.round != round_ || workers_ != Workers::kLive || recorded_) return;
  say(membership::RecordsWanted{round_});
  record();
}

void AgentMachine::Impl::record() {
  if (!std::exchange(recorded_, true)) emit(agent_action::Record{round_});
}

void AgentMachine::Impl::on(const agent_event::RanksInspected& event) {
  mention(event.round, Inspection{round_, event.inquiry, event.ranks});
}

void AgentMachine::Impl::on(const agent_event::StepsTimed& event) {
  if (event.round != round_) return;
  if (!steps_ || steps_->round != round_) steps_ = StepTimes{round_, {}, {}};
  if (!event.ranks.empty()) steps_->ranks = event.ranks;
  if (event.training) steps_->training = event.training;
  mention(event.round, StepTimes{round_, event.ranks, event.training, event.monitor});
}

void AgentMachine::Impl::on(const agent_event::TailRead& event) {
  if (link_ == Link::kUp && !exit_) emit(Send{channel_.plain(event.tail)});
}

// With workers or without; the next one follows soon.
void AgentMachine::Impl::on(const agent_event::NodeRead& event) {
  if (link_ != Link::kUp || exit_) return;
  StepTimes message{round_, {}};
  message.monitor = event.report;
  emit(Send{channel_.plain(std::move(message))});
}

void AgentMachine::Impl::stop_workers(std::chrono::milliseconds grace, bool after_records) {
  if (workers_ == Workers::kNone) return;
  const TimePoint until = now_ + grace + options_.stop_margin;
  if (workers_ == Workers::kStopping && stop_deadline_ && *stop_deadline_ <= until) return;
  workers_ = Workers::kStopping;
  keep_deadline_.reset();
  stop_deadline_ = until;
  emit(StopWorkers{grace, stop_signal_, after_records});
}

void AgentMachine::Impl::renew_lease() {
  if (workers_ == Workers::kNone || link_ != Link::kUp || exit_) return;
  emit(Lease{answered_at_ + keep_alive_ + options_.fence_grace});
}

void AgentMachine::Impl::end_lease() {
  if (workers_ != Workers::kNone) emit(Lease{});
}

void AgentMachine::Impl::fence() {
  if (workers_ == Workers::kNone) return;
  tell(LogLevel::kWarning,
       "nothing was heard of the rendezvous for its keep-alive time; "
       "stopping the workers of this node");
  stop_workers(options_.fence_grace);
}

void AgentMachine::Impl::on(const agent_event::StoreBound& event) {
  if (!binding_) return;
  binding_ = false;
  bound_port_ = event.port;
  if (exit_) return;
  if (stopped_unsaid_) {
    stopped_unsaid_ = false;
    say(stopped_message());
  }
  if (link_ == Link::kOpen && !join_said_) say_join();
}

void AgentMachine::Impl::on(const agent_event::StoreBindFailed& event) {
  if (!binding_) return;
  if (!bind_address_.empty() && bind_address_ == join_.advertised_addr) {
    bind_address_.clear();  // an address in front of this node (NAT): peers come in elsewhere
    emit(BindStore{bind_address_, options_.store_port});
    return;
  }
  binding_ = false;
  if (exit_) return;
  const std::string reason = "can't serve the round's store: " + event.message;
  if (link_ == Link::kUp || !session_.empty()) say(Leave{reason, exit_code(ExitCode::kUsage)});
  decide_here(ExitCode::kUsage, reason);
}

void AgentMachine::Impl::bind_store() {
  binding_ = true;
  if (join_.settings.store == StoreMode::kProxy) {
    bind_address_ = kProxyAddr;
    emit(BindStore{bind_address_, options_.store_port});
    return;
  }
  const bool loopback = local_address_.starts_with("127.") || local_address_ == "::1";
  bind_address_ = join_.advertised_addr;
  if (bind_address_.empty() && !(loopback && join_.settings.max_nodes > 1)) {
    bind_address_ = local_address_;
  }
  emit(BindStore{bind_address_, options_.store_port});
}

}  // namespace ddprun::membership
