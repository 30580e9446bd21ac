// SPDX-License-Identifier: Apache-2.0
// What the agent does with what the rendezvous says.
#include "rendezvous/membership/agent_machine_impl.h"

#include <utility>

namespace ddprun::membership {

using agent_action::CloseLink;
using agent_action::Connect;
using agent_action::Exit;
using agent_action::GoOn;
using agent_action::KeepWorkers;
using agent_action::Prewarm;
using agent_action::ReadTail;
using agent_action::RequestStop;
using agent_action::RoundOver;
using agent_action::Send;
using agent_action::ServeStore;
using agent_action::SetKeepAlive;
using agent_action::Spawn;

void AgentMachine::Impl::on(const agent_event::LinkMessage& event) {
  const RendezvousEnvelope& envelope = event.envelope;
  if (link_ == Link::kDown) return;
  if (const auto* welcome = variants::get_if<Welcome>(&envelope.message);
      welcome != nullptr && link_ == Link::kOpen && !fits(*welcome, envelope.ack)) {
    return;
  }
  switch (channel_.receive(envelope.seq, envelope.ack)) {
    case Arrival::kDuplicate:
      return;
    case Arrival::kGap:
      decide_here(ExitCode::kRendezvousUnreachable,
                  concat("the rendezvous at ", where(), " broke the protocol: message ",
                         envelope.seq, " out of order"));
      return;
    case Arrival::kNew:
      break;
  }
  variants::visit([this](const auto& message) { hear(message); }, envelope.message);
}

// Else the end is decided here. A rendezvous that checks Join::confirmed and the versions refuses
// by itself.
bool AgentMachine::Impl::fits(const Welcome& welcome, std::uint64_t ack) {
  if (welcome.version < kOldestProtocolVersion || welcome.version > kProtocolVersion) {
    decide_here(ExitCode::kUsage, concat("the rendezvous at ", where(), " speaks version ",
                                         welcome.version, " of the control protocol, this ddprun ",
                                         kProtocolVersion, ": install the same ddprun on both"));
    return false;
  }
  if (ack >= channel_.acknowledged()) return true;
  stop_workers(options_.fence_grace);  // others may go on without it soon
  decide_here(ExitCode::kRetryable, concat("the rendezvous at ", where(), " had confirmed message ",
                                           channel_.acknowledged(), " of this node and knows ", ack,
                                           " now: its journal lost its end"));
  return false;
}

void AgentMachine::Impl::hear(const Welcome& welcome) {
  if (link_ != Link::kOpen) return;
  link_ = Link::kUp;
  welcome_deadline_.reset();
  reach_deadline_.reset();
  if (!session_.empty()) tell(LogLevel::kInfo, "the rendezvous is back");
  session_ = welcome.session;
  embedded_ = welcome.embedded;
  keep_alive_ = welcome.keep_alive;
  if (welcome.clock_us > 0) {
    clock_.sample(joined_at_, std::chrono::microseconds(welcome.clock_us), now_);
  }
  const auto wish = options_.keep_alive_interval;
  const bool heeded = wish.count() > 0 && wish <= keep_alive_ / 2;
  emit(SetKeepAlive{keep_alive_, heeded ? wish : keep_alive_ / 3});
  renew_lease();
  give_up_if_nothing_is_taken();
  if (exit_) return;
  channel_.resend([this](AgentEnvelope again) { emit(Send{std::move(again)}); });
  if (steps_) mention(steps_->round, *steps_);  // a rendezvous that was restarted has forgotten it
  if (const auto stalled = std::exchange(stalled_unsaid_, {})) mention(stalled->round, *stalled);
}

void AgentMachine::Impl::give_up_if_nothing_is_taken() {
  const std::uint64_t oldest = channel_.oldest_unacknowledged();
  num_untaken_ = oldest != 0 && oldest == oldest_resent_ ? num_untaken_ + 1 : 0;
  oldest_resent_ = oldest;
  if (num_untaken_ < kMostUntaken) return;
  decide_here(ExitCode::kRendezvousUnreachable,
              concat("the rendezvous at ", where(), " ended ", num_untaken_,
                     " connections in a row without taking message ", oldest,
                     " of this node; its log says why"));
}

void AgentMachine::Impl::hear(const Waiting& waiting) {
  if (waiting.spare && options_.in_own_job && workers_ == Workers::kNone) {
    return decide_here(ExitCode::kUsage,
                       concat("a worker of job ", join_.run_id,
                              " started this ddprun, which would wait as a spare of the same job "
                              "for that worker's end; for a job of its own give it --standalone, "
                              "or another --rdzv-id and no PET_ variables"));
  }
  if (waiting.spare && options_.prewarm && !prewarmed_ && !exit_ && workers_ == Workers::kNone) {
    prewarmed_ = true;
    emit(Prewarm{});
  }
  std::string text = waiting.note;
  if (text.empty()) {
    text =
        concat("waiting for nodes: ", waiting.have_nodes, " of ", waiting.need_nodes, " are here");
  }
  if (text == last_told_) return;
  last_told_ = text;
  // Nodes that come within moments of each other are no news.
  const bool counts = waiting.need_nodes > 0;
  if (counts && patience_until_ && now_ < *patience_until_) {
    waiting_text_ = std::move(text);
  } else {
    tell(LogLevel::kInfo, std::move(text));
  }
}

void AgentMachine::Impl::hear(const StartRound& start) {
  if (exit_ || start.round <= round_ || (start.in_place && !go_on(start))) return;
  if (!start.in_place && workers_ != Workers::kNone) return;
  close_store();
  waiting_text_.clear();
  patience_until_.reset();  // between rounds each wait is news
  round_ = start.round;
  failed_ = false;
  recorded_ = false;
  if (is_overdue() && !start.in_place) {
    return decline("nothing was heard of the rendezvous for its keep-alive time");
  }
  workers_ = Workers::kLive;
  prewarmed_ = false;
  Spawn spawn{start};
  if (store_is_at_endpoint(join_.settings)) {
    spawn.round.master_addr = options_.endpoints.front().host;
    spawn.round.master_port = options_.endpoints.front().port;
  }
  if (start.serve_store) {
    emit(ServeStore{round_});
    serving_store_ = true;
    bound_port_ = 0;
  }
  if (start.in_place) {
    emit(GoOn{std::move(spawn.round)});
  } else {
    emit(std::move(spawn));
  }
  renew_lease();
}

// Whether the workers that the round is for wait for it. Where they don't any more (this node was
// cut off meanwhile), the rendezvous hears that none is left.
bool AgentMachine::Impl::go_on(const StartRound& start) {
  if (workers_ == Workers::kKept) return true;
  if (workers_ == Workers::kNone) {
    close_store();
    round_ = start.round;
    decline("the workers that were to go on are gone");
  } else {
    declined_ = start.round;
    if (workers_ != Workers::kStopping) stop_in_order();
  }
  return false;
}

// As where this process stood still: the round may be over, and another one run elsewhere.
void AgentMachine::Impl::decline(const std::string& why) {
  tell(LogLevel::kWarning, concat("round ", round_, " is not started: ", why));
  last_step_ = 0;
  gone_at_ = now_;
  say_stopped();
}

void AgentMachine::Impl::hear(const Preempt& preempt) {
  if (exit_ || preempt.round != round_ || workers_ != Workers::kLive) return;
  tell(LogLevel::kWarning,
       concat("preemption: ", preempt.reason, "; workers are asked to leave within ",
              preempt.notice.count() / 1000.0, " s"));
  emit(RequestStop{round_, preempt.notice});
}

void AgentMachine::Impl::hear(const StopRound& stop) {
  if (exit_ || stop.round != round_) return;
  const bool keep = stop.keep.count() > 0 && workers_ == Workers::kLive;
  if (!stop.last) emit(RoundOver{round_, stop.reason, keep});
  if (!are_on()) return;
  tell(LogLevel::kWarning, concat("round ", round_, " is over: ", stop.reason));
  if (!keep) return stop_in_order();
  workers_ = Workers::kKeeping;
  keep_deadline_ = now_ + stop.keep;
  emit(KeepWorkers{round_});
}

void AgentMachine::Impl::hear(const membership::Inspect& inspect) {
  if (!exit_ && inspect.round == round_ && workers_ == Workers::kLive) {
    emit(agent_action::Inspect{round_, inspect.inquiry});
  }
}

void AgentMachine::Impl::hear(const HangVerdict& verdict) {
  if (verdict.round != round_ || workers_ == Workers::kNone) return;
  tell(LogLevel::kWarning, verdict.text);
  for (const std::string& line : verdict.lines) tell(LogLevel::kWarning, "  " + line);
}

void AgentMachine::Impl::hear(const membership::Record& wanted) {
  if (!exit_ && wanted.round == round_ && workers_ == Workers::kLive) record();
}

// Workers that have ended are asked for, too: the last lines of one that failed are worth a look.
void AgentMachine::Impl::hear(const TailWanted& wanted) {
  if (!exit_) emit(ReadTail{wanted.round, wanted.request, wanted.global_rank});
}

void AgentMachine::Impl::hear(const JobEnd& end) {
  emit(Send{channel_.plain(Ack{})});
  awaiting_job_end_ = false;
  end_lease();
  exit_ = Exit{end, false};
  stop_in_order();
}

void AgentMachine::Impl::hear(const Refused& refused) {
  awaiting_job_end_ = false;
  if (exit_) return;
  if (round_ == 0 && refused.again) return start_over(refused.message);
  // This node was given up: others may go on without it soon.
  if (!session_.empty()) stop_workers(options_.fence_grace);
  JobEnd end;
  end.exit_code = refused.exit_code;
  end.reason = refused.message;
  decide_here(std::move(end));
}

void AgentMachine::Impl::start_over(const std::string& why) {
  link_ = Link::kDown;
  welcome_deadline_.reset();
  session_.clear();
  ++num_lives_;
  embedded_ = false;
  waiting_text_.clear();
  if (last_told_ != why) tell(LogLevel::kInfo, why + "; trying again");
  last_told_ = why;
  emit(CloseLink{});
  if (!reach_deadline_) reach_deadline_ = now_ + options_.connect_timeout;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*reach_deadline_ - now_);
  if (left.count() > 0) {
    emit(Connect{left});
  } else {
    unreachable(concat("the rendezvous at ", where(), ": ", why));
  }
}

}  // namespace ddprun::membership
