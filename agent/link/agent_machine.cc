// SPDX-License-Identifier: Apache-2.0
#include "agent/link/agent_machine.h"

#include <algorithm>

#include "common/endpoint_list.h"
#include "common/signal_names.h"

namespace ddprun::membership {

using agent_action::CloseLink;
using agent_action::Connect;
using agent_action::Send;
using std::chrono::duration_cast;
using std::chrono::microseconds;

std::vector<AgentAction> AgentMachine::step(const AgentEvent& event, TimePoint now) {
  out_.clear();
  now_ = now;
  if (!exited_) {
    variants::visit([this](const auto& each) { on(each); }, event);
    finish_if_done();
  }
  return std::move(out_);
}

std::optional<Clock::time_point> AgentMachine::next_deadline() const {
  std::optional<TimePoint> next;
  if (exited_) return next;
  const auto patience = waiting_text_.empty() ? std::nullopt : patience_until_;
  for (const auto& deadline :
       {welcome_deadline_, leave_deadline_, stop_deadline_, keep_deadline_, patience}) {
    keep_earlier(next, deadline);
  }
  return next;
}

void AgentMachine::on(const agent_event::Signal& event) {
  // If the job has ended already, the workers are being stopped in order.
  if (!signalled_ && exit_ && workers_ == Workers::kStopping) {
    signalled_ = true;
    return;
  }
  if (signalled_ || exit_) {
    // The job may go on without this node. A terminal that goes may send two signals at once.
    constexpr std::chrono::seconds kSecondThoughts{1};
    if (link_ == Link::kUp && event.is_users && left_at_ && now_ >= *left_at_ + kSecondThoughts) {
      say(Leave{.reason = concat("received ", signal_name(event.number), " again"),
                .exit_code = exit_status_for_signal(event.number),
                .everyone = true});
    }
    awaiting_job_end_ = false;
    stop_workers(std::chrono::milliseconds{0});
    return;
  }
  if (event.is_users) left_at_ = now_;
  leave({"received " + signal_name(event.number), exit_status_for_signal(event.number)},
        event.number);
}

void AgentMachine::on(const agent_event::Abandoned& event) {
  if (!exit_) leave({event.reason, exit_code(ExitCode::kRetryable), true}, event.number);
}

void AgentMachine::leave(Leave leave, int stop_signal) {
  signalled_ = true;
  stop_signal_ = stop_signal;
  JobEnd end;
  end.exit_code = leave.exit_code;
  end.reason = leave.reason;
  if (link_ == Link::kUp) {
    say(std::move(leave));
    awaiting_job_end_ = true;
    end_lease();
    leave_deadline_ = now_ + options_.leave_timeout;
  }
  decide_here(std::move(end));
}

void AgentMachine::on(const agent_event::Timer&) {
  const auto due = [this](const std::optional<TimePoint>& at) { return at && *at <= now_; };
  if (due(welcome_deadline_)) {
    welcome_deadline_.reset();
    const std::string what = concat("took the connection but did not answer within ",
                                    options_.welcome_timeout.count(), " ms");
    if (options_.endpoints.size() > 1) {  // another one may lead by now
      emit(CloseLink{});
      on(agent_event::LinkDown{false, "it " + what});
    } else {
      decide_here(ExitCode::kRendezvousUnreachable,
                  concat("the rendezvous at ", where(), " ", what));
    }
  }
  if (due(patience_until_) && !waiting_text_.empty()) {
    tell(LogLevel::kInfo, std::exchange(waiting_text_, {}));
  }
  if (due(leave_deadline_)) {
    leave_deadline_.reset();
    awaiting_job_end_ = false;
  }
  if (due(keep_deadline_)) not_kept("not all workers have asked to go on in time");
  if (due(stop_deadline_)) {
    stop_deadline_.reset();
    workers_ = Workers::kNone;
    tell(LogLevel::kError, "the workers of this node could not be stopped in time");
    if (!exit_) decide_here(ExitCode::kRetryable, "the workers could not be stopped in time");
  }
}

// As given, where it is one: the link may know it by another address.
std::string AgentMachine::where() const {
  if (options_.endpoints.size() == 1) return to_string(options_.endpoints.front());
  return linked_to_ ? to_string(*linked_to_) : to_string(options_.endpoints);
}

void AgentMachine::decide_here(ExitCode code, std::string reason) {
  JobEnd end;
  end.exit_code = exit_code(code);
  end.reason = std::move(reason);
  decide_here(std::move(end));
}

void AgentMachine::decide_here(JobEnd end) {
  if (exit_) return;
  end.rounds = round_;
  if (failed_) end.first_failure = failure_;
  exit_ = agent_action::Exit{std::move(end), true};
  stop_workers(join_.timeouts.stop_grace);
}

void AgentMachine::finish_if_done() {
  if (!exit_ || workers_ != Workers::kNone || awaiting_job_end_) return;
  close_store();
  emit(CloseLink{});
  emit(*exit_);
  exited_ = true;
}

void AgentMachine::close_store() {
  if (serving_store_) emit(agent_action::CloseStore{round_});
  serving_store_ = false;
}

void AgentMachine::say(AgentMessage message) {
  AgentEnvelope envelope = channel_.number(std::move(message));
  if (link_ == Link::kUp) emit(Send{std::move(envelope)});
}

void AgentMachine::say_of_round(std::uint64_t round, AgentMessage message) {
  if (round == round_ && workers_ == Workers::kLive) say(std::move(message));
}

void AgentMachine::mention(std::uint64_t round, AgentMessage message) {
  if (round != round_ || workers_ != Workers::kLive || link_ != Link::kUp || exit_) return;
  emit(Send{channel_.plain(std::move(message))});
}

void AgentMachine::say_join() {
  Join join = join_;
  join.session = session_;
  join.unfit = unfit_;
  if (num_lives_ > 0) join.instance += concat("/", num_lives_);  // another node
  join.store_port = bound_port_;
  join.confirmed = channel_.acknowledged();
  joined_at_ = now_;
  join_said_ = true;
  emit(Send{channel_.plain(std::move(join))});
}

void AgentMachine::on(const agent_event::Start& event) {
  unfit_ = event.unfit;
  reach_deadline_ = now_ + options_.connect_timeout;
  patience_until_ = now_ + kPatience;
  emit(Connect{options_.connect_timeout});
}

void AgentMachine::on(const agent_event::LinkUp& event) {
  if (link_ != Link::kDown) return;
  link_ = Link::kOpen;
  join_said_ = false;
  welcome_deadline_ = now_ + options_.welcome_timeout;
  if (!session_.empty() && reach_deadline_) {
    welcome_deadline_ = std::min(*welcome_deadline_, std::max(*reach_deadline_, now_));
  }
  local_address_ = event.local_address;
  linked_to_ = event.endpoint;
  answered_at_ = now_;
  clock_.reset();  // another rendezvous may have taken the endpoint
  // While workers live the listener is in use; WorkersStopped will name the next one.
  if (needs_store() && workers_ == Workers::kNone) {
    bind_store();
  } else if (!binding_) {
    say_join();
  }
}

void AgentMachine::on(const agent_event::LinkAnswered& event) {
  answered_at_ = std::max(answered_at_, event.sent_at);
  renew_lease();
}

void AgentMachine::on(const agent_event::ClockSampled& event) {
  clock_.sample(event.sent, event.answered, event.received);
}

void AgentMachine::on(const agent_event::LinkDown& event) {
  const bool was_down = link_ == Link::kDown;
  link_ = Link::kDown;
  welcome_deadline_.reset();
  if (exit_) {
    awaiting_job_end_ = false;
    return;
  }
  // One that stood still may read of the end first: it was given up for its silence before.
  if (event.silence || (!was_down && is_overdue())) {
    fence();
  } else {
    end_lease();  // what ended a connection may be the rendezvous' own end
  }
  if (failed_) stop_in_order();  // the round is over, whoever hears of it
  if (was_down) return;          // Connect is under way
  if (!reach_deadline_) {
    tell(LogLevel::kWarning,
         concat("lost the rendezvous at ", where(), " (", event.reason, "); trying to come back"));
    reach_deadline_ =
        now_ + (embedded_ ? options_.embedded_lost_timeout : options_.rendezvous_lost_timeout);
  }
  // Another one may lead soon, and wait for this node as long (Job::without_rendezvous_until).
  if (options_.endpoints.size() > 1 && are_on()) {
    emit(agent_action::Lease{*reach_deadline_ + join_.timeouts.stop_grace});
  }
  reach_again(" ends every connection: " + event.reason);
}

void AgentMachine::reach_again(const std::string& trouble) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*reach_deadline_ - now_);
  if (left.count() > 0) return emit(Connect{left});
  unreachable(concat("the rendezvous at ", where(), trouble));
}

void AgentMachine::on(const agent_event::LinkFailed& event) {
  link_ = Link::kDown;
  if (exit_) {
    awaiting_job_end_ = false;
  } else if (event.is_users_fault) {
    decide_here(ExitCode::kUsage, event.message);
  } else {
    unreachable(event.message);
  }
}

void AgentMachine::unreachable(const std::string& message) {
  if (session_.empty()) {
    decide_here(ExitCode::kRendezvousUnreachable, message);
  } else if (embedded_) {
    decide_here(
        ExitCode::kRetryable,
        after_standstill(concat(
            "lost the node that serves the rendezvous, without which the job can't go on: it was "
            "in that node's ddprun and is gone with it, and no standby was named (several ddprund "
            "outlive each other: --rdzv-endpoint=a,b, docs/ha.md); ",
            message)));
  } else {
    decide_here(ExitCode::kRendezvousUnreachable,
                after_standstill("lost the rendezvous for good: " + message));
  }
}

// ---- clocks ----

void ClockOffset::sample(Clock::time_point sent, microseconds answered,
                         Clock::time_point received) {
  if (received < sent) return;
  const auto half = (received - sent) / 2;
  samples_.push_back({sent + half, answered, duration_cast<microseconds>(half)});
  if (samples_.size() > kKept) samples_.pop_front();
}

std::optional<RemoteMoment> ClockOffset::remote(Clock::time_point when) const {
  std::optional<RemoteMoment> best;
  for (const Sample& sample : samples_) {
    const auto since = duration_cast<microseconds>(when - sample.middle);
    const auto drift = microseconds(static_cast<microseconds::rep>(
        static_cast<double>(std::chrono::abs(since).count()) * kDrift));
    const RemoteMoment moment{sample.remote + since, sample.half_round_trip + drift};
    if (!best || moment.error < best->error) best = moment;
  }
  return best;
}

// ---- its owner's queue ----

AgentRunner::AgentRunner(AgentOptions options, Hooks hooks)
    : hooks_(std::move(hooks)), machine_(std::move(options)) {}

void AgentRunner::handle(AgentEvent event) {
  if (dropped_) return;
  waiting_.push_back(std::move(event));
  if (handling_) return;
  handling_ = true;
  while (!waiting_.empty()) {
    const AgentEvent next = std::move(waiting_.front());
    waiting_.pop_front();
    if (variants::holds_alternative<agent_event::Timer>(next)) wake_at_.reset();  // it has fired
    for (const AgentAction& todo : machine_.step(next, hooks_.now())) {
      if (!dropped_) hooks_.perform(todo);
    }
  }
  handling_ = false;
  if (!dropped_) set_timer();
}

void AgentRunner::drop() {
  dropped_ = true;
  waiting_.clear();
}

void AgentRunner::set_timer() {
  const auto deadline = machine_.next_deadline();
  if (deadline == wake_at_) return;
  wake_at_ = deadline;
  hooks_.wake_at(deadline);
}

}  // namespace ddprun::membership
