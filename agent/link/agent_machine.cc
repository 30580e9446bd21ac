// SPDX-License-Identifier: Apache-2.0
#include "agent/link/agent_machine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/endpoint.h"
#include "common/error.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {
namespace {

// Returns the addresses to bind, the best first.
std::vector<std::string> addresses(const Join& join, const std::string& local_address) {
  if (join.settings.store == StoreMode::kProxy) return {kProxyAddr};
  // An address in front of this node (NAT) can't be bound: peers' connections arrive at another
  // one.
  if (!join.advertised_addr.empty()) return {join.advertised_addr, ""};
  // A loopback address means that the rendezvous is on this machine; other nodes may be elsewhere.
  if (names_loopback(local_address) && join.settings.max_nodes > 1) return {""};
  return {local_address};
}

}  // namespace

using agent_action::CloseLink;
using agent_action::Connect;
using agent_action::Lease;
using agent_action::RoundOver;
using agent_action::Send;

// From Leave until the job's end is confirmed.
constexpr std::chrono::milliseconds kLeaveTimeout{2'000};

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
  for (const auto& deadline :
       {welcome_deadline_, leave_deadline_, stop_deadline_, keep_deadline_, waits_.due()}) {
    keep_earlier(next, deadline);
  }
  return next;
}

void AgentMachine::on(const agent_event::Signal& event) {
  // If the job has ended already, the workers are being stopped with the usual grace.
  if (!signalled_ && exit_ && workers_ == Workers::kStopping) {
    signalled_ = true;
    return;
  }
  if (signalled_ || exit_) {
    // The job may go on without this node, so a second signal of the user's ends it everywhere. One
    // that comes at once doesn't: a terminal that closes may send two.
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
    leave_deadline_ = now_ + kLeaveTimeout;
  }
  decide_here(std::move(end));
}

void AgentMachine::on(const agent_event::Timer&) {
  const auto due = [this](const std::optional<TimePoint>& at) { return at && *at <= now_; };
  if (due(welcome_deadline_)) {
    welcome_deadline_.reset();
    const std::string what = concat("took the connection but did not answer within ",
                                    options_.welcome_timeout.count(), " ms");
    if (options_.endpoints.size() > 1) {  // another endpoint may lead by now
      emit(CloseLink{});
      on(agent_event::LinkDown{false, "it " + what});
    } else {
      decide_here(ExitCode::kRendezvousUnreachable,
                  concat("the rendezvous at ", where(), " ", what));
    }
  }
  if (auto news = waits_.take_due(now_)) tell(LogLevel::kInfo, std::move(*news));
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

// Returns the endpoint as it was given, if there is just one: the link may have another address.
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
  stop_workers(join_.timeouts.shutdown);
}

void AgentMachine::finish_if_done() {
  if (!exit_ || workers_ != Workers::kNone || awaiting_job_end_) return;
  close_store();
  emit(CloseLink{});
  emit(*exit_);
  exited_ = true;
}

void AgentMachine::close_store() {
  if (store_.close()) emit(agent_action::CloseStore{round_});
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
  if (num_lives_ > 0) join.instance += concat("/", num_lives_);  // a new life is another node
  join.store_port = store_.port();
  join.confirmed = channel_.acknowledged();
  joined_at_ = now_;
  emit(Send{channel_.plain(std::move(join))});
}

void AgentMachine::on(const agent_event::Start& event) {
  unfit_ = event.unfit;
  reach_deadline_ = now_ + options_.connect_timeout;
  waits_.begin(now_);
  emit(Connect{options_.connect_timeout});
}

void AgentMachine::on(const agent_event::LinkUp& event) {
  if (link_ != Link::kDown) return;
  link_ = Link::kOpen;
  welcome_deadline_ = now_ + options_.welcome_timeout;
  if (!session_.empty() && reach_deadline_) {
    welcome_deadline_ = std::min(*welcome_deadline_, std::max(*reach_deadline_, now_));
  }
  local_address_ = event.local_address;
  linked_to_ = event.endpoint;
  answered_at_ = now_;
  clock_.reset();  // another rendezvous may have taken the endpoint
  // While workers live, the listener is in use; WorkersStopped will name the next one.
  if (workers_ == Workers::kNone) {
    store_.prepare(local_address_);
    if (!store_.trouble().empty()) return leave_without_store();
  }
  say_join();
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
  // A process that stood still may read about the connection's end first. The rendezvous had given
  // it up for its silence before.
  if (event.silence || (!was_down && is_overdue())) {
    fence();
  } else {
    end_lease();  // the connection may have ended because the rendezvous did
  }
  if (failed_) stop_in_order();  // the round is over, whether the rendezvous hears it or not
  if (was_down) return;          // Connect is under way
  if (!reach_deadline_) {
    tell(LogLevel::kWarning,
         concat("lost the rendezvous at ", where(), " (", event.reason, "); trying to come back"));
    reach_deadline_ = now_ + (embedded_ ? options_.embedded_lost_timeout
                                        : options_.join.timeouts.rendezvous_lost);
  }
  // Another endpoint may lead soon, and waits as long for this node
  // (Job::without_rendezvous_until).
  if (options_.endpoints.size() > 1 && are_on()) {
    emit(agent_action::Lease{*reach_deadline_ + join_.timeouts.shutdown});
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

void AgentMachine::on(const agent_event::LinkMessage& event) {
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

// Whether this node can go on with this rendezvous; if not, the end is decided here. A rendezvous
// that checks Join::confirmed and the versions refuses the node by itself.
bool AgentMachine::fits(const Welcome& welcome, std::uint64_t ack) {
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

void AgentMachine::hear(const Welcome& welcome) {
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
  emit(agent_action::SetKeepAlive{keep_alive_, heeded ? wish : keep_alive_ / 3});
  renew_lease();
  give_up_if_nothing_is_taken();
  if (exit_) return;
  channel_.resend([this](AgentEnvelope again) { emit(Send{std::move(again)}); });
  if (steps_) mention(steps_->round, *steps_);  // a restarted rendezvous doesn't know it
  if (const auto stalled = std::exchange(stalled_unsaid_, {})) mention(stalled->round, *stalled);
}

void AgentMachine::give_up_if_nothing_is_taken() {
  const std::uint64_t oldest = channel_.oldest_unacknowledged();
  num_untaken_ = oldest != 0 && oldest == oldest_resent_ ? num_untaken_ + 1 : 0;
  oldest_resent_ = oldest;
  if (num_untaken_ < kMostUntaken) return;
  decide_here(ExitCode::kRendezvousUnreachable,
              concat("the rendezvous at ", where(), " ended ", num_untaken_,
                     " connections in a row without taking message ", oldest,
                     " of this node; its log says why"));
}

void AgentMachine::hear(const Waiting& waiting) {
  if (waiting.spare && options_.in_own_job && workers_ == Workers::kNone) {
    return decide_here(ExitCode::kUsage,
                       concat("a worker of job ", join_.run_id,
                              " started this ddprun, which would wait as a spare of the same job "
                              "for that worker's end; for a job of its own give it --standalone, "
                              "or another --rdzv-id and no PET_ variables"));
  }
  if (waiting.spare && options_.prewarm && !prewarmed_ && !exit_ && workers_ == Workers::kNone) {
    prewarmed_ = true;
    emit(agent_action::Prewarm{});
  }
  if (auto news = waits_.hear(waiting, now_)) tell(LogLevel::kInfo, std::move(*news));
}

void AgentMachine::hear(const StartRound& start) {
  if (exit_ || start.round <= round_ || (start.in_place && !go_on(start))) return;
  if (!start.in_place && workers_ != Workers::kNone) return;
  close_store();
  waits_.round_started();
  round_ = start.round;
  hang_.reset();
  failed_ = false;
  stood_still_ = {};
  recorded_ = false;
  if (is_overdue() && !start.in_place) {
    return decline("nothing was heard of the rendezvous for its keep-alive time");
  }
  if (!store_.trouble().empty()) return leave_without_store();
  workers_ = Workers::kLive;
  prewarmed_ = false;
  agent_action::Spawn spawn{start};
  if (store_is_at_endpoint(join_.settings)) {
    spawn.round.master_addr = options_.endpoints.front().host;
    spawn.round.master_port = options_.endpoints.front().port;
  }
  if (start.serve_store) {
    emit(agent_action::ServeStore{round_, names_loopback(start.master_addr)});
    store_.serve();
  }
  if (start.in_place) {
    emit(agent_action::GoOn{std::move(spawn.round)});
  } else {
    emit(std::move(spawn));
  }
  renew_lease();
}

// Whether the workers that the round is for wait for it. If they don't any more (this node was cut
// off meanwhile), the rendezvous is told that none is left.
bool AgentMachine::go_on(const StartRound& start) {
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

// Used also after a standstill of this process: the round may be over, and another one may run
// elsewhere.
void AgentMachine::decline(const std::string& why) {
  tell(LogLevel::kWarning, concat("round ", round_, " is not started: ", why));
  last_step_ = 0;
  gone_at_ = now_;
  say_stopped();
}

void AgentMachine::hear(const Preempt& preempt) {
  if (exit_ || preempt.round != round_ || workers_ != Workers::kLive) return;
  tell(LogLevel::kWarning,
       concat("preemption: ", preempt.reason, "; workers are asked to leave within ",
              preempt.notice.count() / 1000.0, " s"));
  emit(agent_action::RequestStop{round_, preempt.notice, preempt.signal_number});
}

void AgentMachine::hear(const StopRound& stop) {
  if (exit_ || stop.round != round_) return;
  const bool keep = stop.keep.count() > 0 && workers_ == Workers::kLive;
  if (!stop.last) emit(RoundOver{round_, stop.reason, keep});
  if (!are_on()) return;
  tell(LogLevel::kWarning, concat("round ", round_, " is over: ", stop.reason));
  if (!keep) return stop_in_order();
  workers_ = Workers::kKeeping;
  keep_deadline_ = now_ + stop.keep;
  emit(agent_action::KeepWorkers{round_});
}

void AgentMachine::hear(const membership::Inspect& inspect) {
  if (!exit_ && inspect.round == round_ && workers_ == Workers::kLive) {
    emit(inspect);
  }
}

void AgentMachine::hear(const HangVerdict& verdict) {
  if (verdict.round != round_ || workers_ == Workers::kNone) return;
  const bool goes_on = hang_ && verdict.text.starts_with(kStillHangs);
  if (!goes_on) hang_ = {verdict.text, now_};
  tell(LogLevel::kWarning, verdict.text);
  for (const std::string& line : verdict.lines) tell(LogLevel::kWarning, "  " + line);
}

void AgentMachine::hear(const membership::Record& wanted) {
  if (!exit_ && wanted.round == round_ && workers_ == Workers::kLive) record();
}

// Passes on requests for ended workers, too: the last lines of one that failed are useful.
void AgentMachine::hear(const TailWanted& wanted) {
  if (!exit_) emit(wanted);
}

void AgentMachine::hear(const JobEnd& end) {
  emit(Send{channel_.plain(Ack{})});
  awaiting_job_end_ = false;
  end_lease();
  exit_ = agent_action::Exit{end, false};
  exit_->verdict.reason = after_standstill(end.reason);
  if (hang_ && end.exit_code != 0 && !end.first_failure) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now_ - hang_->at).count();
    exit_->verdict.reason += concat("; ", seconds, " s before: ", hang_->text);
  }
  stop_in_order();
}

// Returns the reason with the standstill of this process before it, since that came first.
std::string AgentMachine::after_standstill(const std::string& reason) const {
  if (stood_still_ == Clock::duration::zero()) return reason;
  return concat("this ddprun stood still for ", seconds_in_tenths(stood_still_),
                " s (stopped by a signal, or its machine was paused); then: ", reason);
}

void AgentMachine::hear(const Refused& refused) {
  awaiting_job_end_ = false;
  if (exit_) return;
  if (round_ == 0 && refused.again) return start_over(refused.message);
  // The rendezvous has given this node up: others may go on without it soon.
  if (!session_.empty()) stop_workers(options_.fence_grace);
  JobEnd end;
  end.exit_code = refused.exit_code;
  end.reason = after_standstill(refused.message);
  decide_here(std::move(end));
}

void AgentMachine::start_over(const std::string& why) {
  link_ = Link::kDown;
  welcome_deadline_.reset();
  session_.clear();
  ++num_lives_;
  embedded_ = false;
  waits_.forget();
  if (waits_.is_news(why)) tell(LogLevel::kInfo, why + "; trying again");
  emit(agent_action::CloseLink{});
  if (!reach_deadline_) reach_deadline_ = now_ + options_.connect_timeout;
  reach_again(": " + why);
}

// ---- workers ----

void AgentMachine::on(const agent_event::WorkerFailed& event) {
  if (event.round != round_ || workers_ == Workers::kNone || failed_) return;
  // A late report is of a worker that died before this node was told to stop, so it may be the
  // cause.
  if (exit_ && workers_ == Workers::kStopping) return;
  failed_ = true;
  failure_ = event.failure;
  if (event.died_at) date_failure(*event.died_at);
  if (exit_) return;
  say(WorkerFailed{round_, failure_});
  if (link_ != Link::kUp) stop_in_order();
}

void AgentMachine::date_failure(TimePoint died_at) {
  const auto moment = clock_.remote(died_at);
  if (!moment) return;
  failure_.died_at_us = std::max<std::int64_t>(moment->at.count(), 0);
  failure_.clock_error_us = moment->error.count();
}

void AgentMachine::on(const agent_event::WorkersFenced& event) {
  if (event.round != round_ || !are_on()) return;
  tell(LogLevel::kWarning,
       "this ddprun stood still for longer than the keep-alive time allows; its workers were "
       "killed, for the others may have gone on without them");
  stop_workers(std::chrono::milliseconds{0});
}

void AgentMachine::on(const agent_event::Warned& event) {
  if (exit_) return;
  if (!session_.empty()) return say(event);
  const bool for_good = event.kind == Preempted::Kind::kTimeLimit;
  decide_here(for_good ? ExitCode::kTimeLimit : ExitCode::kRetryable, "this node " + event.reason);
}

void AgentMachine::on(const agent_event::WorkersGone& event) {
  if (event.round != round_ || workers_ != Workers::kStopping) return;
  workers_ = Workers::kNone;
  if (declined_ > round_) {
    close_store();
    round_ = declined_;
  }
  last_step_ = event.last_step;
  gone_at_ = now_;
  stop_deadline_.reset();
  if (exit_) return;  // the store stays: other nodes' workers may still use it
  say_stopped();
}

void AgentMachine::on(const agent_event::WorkersKept& event) {
  if (event.round != round_ || workers_ != Workers::kKeeping) return;
  workers_ = Workers::kKept;
  keep_deadline_.reset();
  num_kept_ = event.count;
  last_step_ = event.last_step;
  gone_at_ = now_;
  say_stopped();
}

void AgentMachine::on(const agent_event::WorkersNotKept& event) {
  if (event.round == round_ && workers_ == Workers::kKeeping) not_kept(event.why);
}

void AgentMachine::not_kept(const std::string& why) {
  keep_deadline_.reset();
  const std::string what = concat("its workers can't go on in place: ", why);
  emit(RoundOver{round_, what, false});
  tell(LogLevel::kWarning, what);
  stop_in_order();
}

// Reports that no worker is left, even if no listener can be bound. The job may end with this
// round, and only a next round needs a listener.
void AgentMachine::say_stopped() {
  store_.prepare(local_address_);
  const auto moment = clock_.remote(gone_at_);
  say(WorkersStopped{round_, store_.port(), last_step_,
                     moment ? std::max<std::int64_t>(moment->at.count(), 0) : 0,
                     workers_ == Workers::kKept ? num_kept_ : 0});
}

void AgentMachine::on(const agent_event::RankStalled& event) {
  if (event.round == round_ && workers_ == Workers::kLive && link_ != Link::kUp) {
    stalled_unsaid_ = event;
  } else {
    mention(event.round, event);
  }
}

// The rendezvous tells the other nodes' ranks, before the end of the round.
void AgentMachine::on(const agent_event::RecordsWanted& event) {
  if (event.round != round_ || workers_ != Workers::kLive || recorded_) return;
  say(event);
  record();
}

void AgentMachine::record() {
  if (!std::exchange(recorded_, true)) emit(agent_action::Record{round_});
}

void AgentMachine::on(const agent_event::RanksInspected& event) { mention(event.round, event); }

void AgentMachine::on(const agent_event::StepsTimed& event) {
  if (event.round != round_) return;
  if (!steps_ || steps_->round != round_) steps_ = StepTimes{round_, {}, {}};
  if (!event.ranks.empty()) steps_->ranks = event.ranks;
  if (event.training) {
    if (steps_->training && event.training->step > steps_->training->step) hang_.reset();
    steps_->training = event.training;
  }
  mention(event.round, event);
}

void AgentMachine::on(const agent_event::TailRead& event) {
  if (link_ == Link::kUp && !exit_) emit(Send{channel_.plain(event)});
}

// Sends the node's state, whether it has workers or not. It is not kept, since the next one follows
// soon.
void AgentMachine::on(const agent_event::NodeRead& event) {
  if (link_ != Link::kUp || exit_) return;
  StepTimes message{round_, {}};
  message.monitor = event;
  emit(Send{channel_.plain(std::move(message))});
}

void AgentMachine::stop_workers(std::chrono::milliseconds grace, bool after_records) {
  if (workers_ == Workers::kNone) return;
  const TimePoint until = now_ + grace + options_.stop_margin;
  if (workers_ == Workers::kStopping && stop_deadline_ && *stop_deadline_ <= until) return;
  workers_ = Workers::kStopping;
  keep_deadline_.reset();
  stop_deadline_ = until;
  emit(agent_action::StopWorkers{grace, stop_signal_, after_records});
}

void AgentMachine::renew_lease() {
  if (workers_ == Workers::kNone || link_ != Link::kUp || exit_) return;
  emit(Lease{answered_at_ + keep_alive_ + options_.fence_grace});
}

void AgentMachine::end_lease() {
  if (workers_ != Workers::kNone) emit(Lease{});
}

void AgentMachine::fence() {
  if (workers_ == Workers::kNone) return;
  constexpr std::chrono::seconds kLate{1};
  if (const auto silence = now_ - answered_at_; silence > keep_alive_ + kLate) {
    stood_still_ = silence;  // otherwise it would have been noticed earlier
  }
  tell(LogLevel::kWarning,
       "nothing was heard of the rendezvous for its keep-alive time; "
       "stopping the workers of this node");
  stop_workers(options_.fence_grace);
}

void AgentMachine::leave_without_store() {
  if (link_ == Link::kUp || !session_.empty()) {
    say(Leave{store_.trouble(), exit_code(ExitCode::kUsage)});
  }
  decide_here(ExitCode::kUsage, store_.trouble());
}

StoreListener::StoreListener(const Join& join, std::uint16_t port, BindStore bind)
    : join_(join), port_(port), bind_(std::move(bind)) {}

void StoreListener::prepare(const std::string& local_address) {
  if (bound_port_ != 0 || store_is_at_endpoint(join_.settings)) return;
  for (const std::string& address : addresses(join_, local_address)) {
    try {
      bound_port_ = bind_(address, port_);
      trouble_.clear();
      return;
    } catch (const Error& error) {
      trouble_ = std::string("can't serve the round's store: ") + error.what();
    }
  }
}

void StoreListener::serve() {
  is_serving_ = true;
  bound_port_ = 0;
}

bool StoreListener::close() { return std::exchange(is_serving_, false); }

}  // namespace ddprun::membership
