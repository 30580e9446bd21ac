// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/agent_machine.h"

#include <algorithm>
#include <utility>

#include "common/exit_codes.h"
#include "common/signal_names.h"
#include "rendezvous/membership/channel.h"
#include "rendezvous/membership/clock_offset.h"

namespace ddprun::membership {

using namespace agent_action;

class AgentMachine::Impl {
 public:
  using TimePoint = Clock::time_point;
  static constexpr std::chrono::milliseconds kPatience{2'000};
  static constexpr int kMostUntaken = 3;

  explicit Impl(AgentOptions options) : options_(std::move(options)), join_(options_.join) {}

  std::vector<AgentAction> step(const AgentEvent& event, TimePoint now) {
    out_.clear();
    now_ = now;
    if (!exited_) {
      std::visit([this](const auto& each) { on(each); }, event);
      finish_if_done();
    }
    return std::move(out_);
  }

  std::optional<TimePoint> next_deadline() const {
    std::optional<TimePoint> next;
    if (exited_) return next;
    const auto patience = waiting_text_.empty() ? std::nullopt : patience_until_;
    for (const auto& deadline : {welcome_deadline_, leave_deadline_, stop_deadline_, patience}) {
      if (deadline && (!next || *deadline < *next)) next = deadline;
    }
    return next;
  }

  bool exited() const { return exited_; }

 private:
  enum class Link { kDown, kOpen, kUp };  // kOpen: connected, not yet welcome
  enum class Workers { kNone, kLive, kStopping };

  // ---- the link ----

  void on(const agent_event::Start&) {
    reach_deadline_ = now_ + options_.connect_timeout;
    patience_until_ = now_ + kPatience;
    emit(Connect{options_.connect_timeout});
  }

  void on(const agent_event::LinkUp& event) {
    if (link_ != Link::kDown) return;
    link_ = Link::kOpen;
    welcome_deadline_ = now_ + options_.welcome_timeout;
    local_address_ = event.local_address;
    answered_at_ = now_;
    clock_.reset();  // another rendezvous may have taken the endpoint
    // While workers live the listener is in use; WorkersStopped will name the next one.
    if (needs_store() && workers_ == Workers::kNone) {
      bind_store();
    } else if (!binding_) {
      say_join();
    }
  }

  void on(const agent_event::LinkAnswered& event) {
    answered_at_ = std::max(answered_at_, event.sent_at);
    renew_lease();
  }

  void on(const agent_event::ClockSampled& event) {
    clock_.sample(event.sent, event.answered, event.received);
  }

  void on(const agent_event::LinkDown& event) {
    const bool was_down = link_ == Link::kDown;
    link_ = Link::kDown;
    welcome_deadline_.reset();
    if (exit_) {
      awaiting_job_end_ = false;
      return;
    }
    if (event.silence) {
      fence();
    } else {
      end_lease();  // what ended a connection may be the rendezvous' own end: nobody takes over
    }
    if (failed_) stop_workers(join_.timeouts.stop_grace);  // the round is over, whoever hears of it
    if (was_down) return;                                  // Connect is under way
    if (!reach_deadline_) {
      tell(LogLevel::kWarning, concat("lost the rendezvous at ", to_string(options_.endpoint), " (",
                                      event.reason, "); trying to come back"));
      reach_deadline_ =
          now_ + (embedded_ ? options_.embedded_lost_timeout : options_.rendezvous_lost_timeout);
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*reach_deadline_ - now_);
    if (left.count() > 0) {
      emit(Connect{left});
    } else {
      unreachable(concat("the rendezvous at ", to_string(options_.endpoint),
                         " ends every connection: ", event.reason));
    }
  }

  void on(const agent_event::LinkFailed& event) {
    link_ = Link::kDown;
    if (exit_) {
      awaiting_job_end_ = false;
    } else {
      unreachable(event.message);
    }
  }

  void unreachable(const std::string& message) {
    if (session_.empty()) {
      decide_here(ExitCode::kRendezvousUnreachable, message);
    } else if (embedded_) {
      decide_here(
          ExitCode::kRendezvousUnreachable,
          concat("lost the node that serves the rendezvous, and no standby was named: ", message));
    } else {
      decide_here(ExitCode::kRendezvousUnreachable, "lost the rendezvous for good: " + message);
    }
  }

  // ---- the rendezvous' messages ----

  void on(const agent_event::LinkMessage& event) {
    const RendezvousEnvelope& envelope = event.envelope;
    if (link_ == Link::kDown) return;
    switch (channel_.receive(envelope.seq, envelope.ack)) {
      case Arrival::kDuplicate:
        return;
      case Arrival::kGap:
        decide_here(ExitCode::kRendezvousUnreachable,
                    concat("the rendezvous at ", to_string(options_.endpoint),
                           " broke the protocol: message ", envelope.seq, " out of order"));
        return;
      case Arrival::kNew:
        break;
    }
    std::visit([this](const auto& message) { hear(message); }, envelope.message);
  }

  void hear(const Welcome& welcome) {
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
  }

  // A rendezvous that can't read a message ends the connection, and would do so for ever.
  void give_up_if_nothing_is_taken() {
    const std::uint64_t oldest = channel_.oldest_unacknowledged();
    num_untaken_ = oldest != 0 && oldest == oldest_resent_ ? num_untaken_ + 1 : 0;
    oldest_resent_ = oldest;
    if (num_untaken_ < kMostUntaken) return;
    decide_here(ExitCode::kRendezvousUnreachable,
                concat("the rendezvous at ", to_string(options_.endpoint), " ended ", num_untaken_,
                       " connections in a row without taking message ", oldest,
                       " of this node; its log says why"));
  }

  void hear(const Waiting& waiting) {
    if (waiting.spare && options_.prewarm && !prewarmed_ && !exit_ && workers_ == Workers::kNone) {
      prewarmed_ = true;
      emit(Prewarm{});
    }
    std::string text = waiting.note;
    if (text.empty()) {
      text = concat("waiting for nodes: ", waiting.have_nodes, " of ", waiting.need_nodes,
                    " are here");
    }
    if (text == last_told_) return;
    last_told_ = text;
    // Nodes that come within moments of each other are no news.
    const bool counts = waiting.have_nodes < waiting.need_nodes;
    if (counts && patience_until_ && now_ < *patience_until_) {
      waiting_text_ = std::move(text);
    } else {
      tell(LogLevel::kInfo, std::move(text));
    }
  }

  void hear(const StartRound& start) {
    if (exit_ || workers_ != Workers::kNone || start.round <= round_) return;
    close_store();
    waiting_text_.clear();
    round_ = start.round;
    workers_ = Workers::kLive;
    prewarmed_ = false;
    failed_ = false;
    Spawn spawn{start};
    if (is_static()) {
      spawn.round.master_addr = options_.endpoint.host;
      spawn.round.master_port = options_.endpoint.port;
    }
    if (start.serve_store) {
      emit(ServeStore{round_});
      serving_store_ = true;
      bound_port_ = 0;
    }
    emit(std::move(spawn));
    renew_lease();
  }

  void hear(const Preempt& preempt) {
    if (exit_ || preempt.round != round_ || workers_ != Workers::kLive) return;
    tell(LogLevel::kWarning,
         concat("preemption: ", preempt.reason, "; workers are asked to leave within ",
                preempt.notice.count() / 1000.0, " s"));
    emit(RequestStop{round_, preempt.notice});
  }

  void hear(const StopRound& stop) {
    if (exit_ || stop.round != round_ || workers_ != Workers::kLive) return;
    tell(LogLevel::kWarning, concat("round ", round_, " is over: ", stop.reason));
    stop_workers(join_.timeouts.stop_grace);
  }

  void hear(const membership::Inspect& inspect) {
    if (!exit_ && inspect.round == round_ && workers_ == Workers::kLive) {
      emit(agent_action::Inspect{round_, inspect.inquiry});
    }
  }

  void hear(const HangVerdict& verdict) {
    if (verdict.round != round_ || workers_ == Workers::kNone) return;
    tell(LogLevel::kWarning, verdict.text);
    for (const std::string& line : verdict.lines) tell(LogLevel::kWarning, "  " + line);
  }

  void hear(const JobEnd& end) {
    emit(Send{channel_.plain(Ack{})});
    awaiting_job_end_ = false;
    end_lease();
    exit_ = Exit{end, false};
    stop_workers(join_.timeouts.stop_grace);
  }

  void hear(const Refused& refused) {
    awaiting_job_end_ = false;
    if (exit_) return;
    if (refused.again && round_ == 0) {
      start_over(refused.message);
      return;
    }
    JobEnd end;
    end.exit_code = refused.exit_code;
    end.reason = refused.message;
    decide_here(std::move(end));
  }

  // As if nothing had been reached yet; nothing numbered was said before the first round.
  void start_over(const std::string& why) {
    link_ = Link::kDown;
    welcome_deadline_.reset();
    session_.clear();
    embedded_ = false;
    waiting_text_.clear();
    if (last_told_ != why) tell(LogLevel::kInfo, why + "; trying again");
    last_told_ = why;
    emit(CloseLink{});
    if (!reach_deadline_) reach_deadline_ = now_ + options_.connect_timeout;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*reach_deadline_ - now_);
    if (left.count() > 0) {
      emit(Connect{left});
    } else {
      unreachable(concat("the rendezvous at ", to_string(options_.endpoint), ": ", why));
    }
  }

  // ---- the store's listener ----

  void on(const agent_event::StoreBound& event) {
    if (!binding_) return;
    binding_ = false;
    bound_port_ = event.port;
    if (exit_) return;
    if (stopped_unsaid_) {
      stopped_unsaid_ = false;
      say(WorkersStopped{round_, bound_port_, last_step_});
    }
    if (link_ == Link::kOpen) say_join();
  }

  void on(const agent_event::StoreBindFailed& event) {
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

  bool needs_store() const { return !is_static() && bound_port_ == 0 && !binding_; }

  void bind_store() {
    binding_ = true;
    const bool loopback = local_address_.starts_with("127.") || local_address_ == "::1";
    bind_address_ = join_.advertised_addr;
    if (bind_address_.empty() && !(loopback && join_.settings.max_nodes > 1)) {
      bind_address_ = local_address_;
    }
    emit(BindStore{bind_address_, options_.store_port});
  }

  // ---- the workers ----

  void on(const agent_event::WorkersRunning& event) {
    if (event.round == round_ && workers_ == Workers::kLive) say(WorkersRunning{round_});
  }

  void on(const agent_event::WorkerFailed& event) {
    if (event.round != round_ || workers_ == Workers::kNone || failed_) return;
    // One that comes late died before its node was told to stop, so it may be the cause.
    if (exit_ && workers_ == Workers::kStopping) return;
    failed_ = true;
    failure_ = event.failure;
    if (event.died_at) date_failure(*event.died_at);
    if (exit_) return;
    say(WorkerFailed{round_, failure_});
    if (link_ != Link::kUp) stop_workers(join_.timeouts.stop_grace);
  }

  void on(const agent_event::WorkersSucceeded& event) {
    if (event.round == round_ && workers_ == Workers::kLive) say(WorkersSucceeded{round_});
  }

  void date_failure(TimePoint died_at) {
    const auto moment = clock_.remote(died_at);
    if (!moment) return;
    failure_.died_at_us = std::max<std::int64_t>(moment->at.count(), 0);
    failure_.clock_error_us = moment->error.count();
  }

  void on(const agent_event::WorkersFenced& event) {
    if (event.round != round_ || workers_ != Workers::kLive) return;
    tell(LogLevel::kWarning,
         "this ddprun stood still for longer than the keep-alive time allows; its workers were "
         "killed, for the others may have gone on without them");
    stop_workers(std::chrono::milliseconds{0});
  }

  void on(const agent_event::WorkerAsks& event) {
    if (event.request.round == round_ && workers_ == Workers::kLive) say(event.request);
  }

  void on(const agent_event::WorkersLeft& event) {
    if (event.round == round_ && workers_ == Workers::kLive) say(WorkersLeft{round_});
  }

  void on(const agent_event::Warned& event) {
    if (exit_) return;
    if (!session_.empty()) return say(event.warning);
    const bool for_good = event.warning.kind == Preempted::Kind::kTimeLimit;
    decide_here(for_good ? ExitCode::kTimeLimit : ExitCode::kRetryable,
                "this node " + event.warning.reason);
  }

  void on(const agent_event::FirstStepDone& event) {
    if (event.first_step.round == round_ && workers_ == Workers::kLive) say(event.first_step);
  }

  void on(const agent_event::WorkersGone& event) {
    if (event.round != round_ || workers_ != Workers::kStopping) return;
    workers_ = Workers::kNone;
    last_step_ = event.last_step;
    stop_deadline_.reset();
    if (exit_) return;  // the store lives on: other nodes' workers may not be gone yet
    if (needs_store()) {
      stopped_unsaid_ = true;
      bind_store();
    } else {
      say(WorkersStopped{round_, bound_port_, last_step_});
    }
  }

  void on(const agent_event::RankStalled& event) {
    mention(event.round, Stalled{round_, event.report});
  }

  void on(const agent_event::RanksInspected& event) {
    mention(event.round, Inspection{round_, event.inquiry, event.ranks});
  }

  void on(const agent_event::StepsTimed& event) {
    mention(event.round, StepTimes{round_, event.ranks});
  }

  // May be called again; a shorter grace shortens the wait.
  void stop_workers(std::chrono::milliseconds grace) {
    if (workers_ == Workers::kNone) return;
    const TimePoint until = now_ + grace + options_.stop_margin;
    if (workers_ == Workers::kStopping && stop_deadline_ && *stop_deadline_ <= until) return;
    workers_ = Workers::kStopping;
    stop_deadline_ = until;
    emit(StopWorkers{grace});
  }

  // Until when the rendezvous can't have started another round without this node's workers.
  void renew_lease() {
    if (workers_ == Workers::kNone || link_ != Link::kUp || exit_) return;
    emit(Lease{answered_at_ + keep_alive_ + options_.fence_grace});
  }

  // No other round can come without this node's leave.
  void end_lease() {
    if (workers_ != Workers::kNone) emit(Lease{});
  }

  // Cut off: others may go on without this node soon, so its workers must not.
  void fence() {
    if (workers_ == Workers::kNone) return;
    tell(LogLevel::kWarning,
         "nothing was heard of the rendezvous for its keep-alive time; "
         "stopping the workers of this node");
    stop_workers(options_.fence_grace);
  }

  // ---- the user ----

  void on(const agent_event::Signal& event) {
    if (signalled_ || exit_) {
      awaiting_job_end_ = false;
      stop_workers(std::chrono::milliseconds{0});
      return;
    }
    signalled_ = true;
    JobEnd end;
    end.exit_code = exit_status_for_signal(event.number);
    end.reason = "received " + signal_name(event.number);
    if (link_ == Link::kUp) {
      say(Leave{end.reason, end.exit_code});
      awaiting_job_end_ = true;
      end_lease();
      leave_deadline_ = now_ + options_.leave_timeout;
    }
    decide_here(std::move(end));
  }

  // ---- time ----

  void on(const agent_event::Timer&) {
    const auto due = [this](const std::optional<TimePoint>& at) { return at && *at <= now_; };
    if (due(welcome_deadline_)) {
      welcome_deadline_.reset();
      decide_here(ExitCode::kRendezvousUnreachable,
                  concat("the rendezvous at ", to_string(options_.endpoint),
                         " took the connection but did not answer within ",
                         options_.welcome_timeout.count(), " ms"));
    }
    if (due(patience_until_) && !waiting_text_.empty()) {
      tell(LogLevel::kInfo, std::exchange(waiting_text_, {}));
    }
    if (due(leave_deadline_)) {
      leave_deadline_.reset();
      awaiting_job_end_ = false;
    }
    if (due(stop_deadline_)) {
      stop_deadline_.reset();
      workers_ = Workers::kNone;
      tell(LogLevel::kError, "the workers of this node could not be stopped in time");
      if (!exit_) decide_here(ExitCode::kRetryable, "the workers could not be stopped in time");
    }
  }

  // ---- the end ----

  void decide_here(ExitCode code, std::string reason) {
    JobEnd end;
    end.exit_code = exit_code(code);
    end.reason = std::move(reason);
    decide_here(std::move(end));
  }

  void decide_here(JobEnd end) {
    if (exit_) return;
    end.rounds = round_;
    if (failed_) end.first_failure = failure_;
    exit_ = Exit{std::move(end), true};
    stop_workers(join_.timeouts.stop_grace);
  }

  void finish_if_done() {
    if (!exit_ || workers_ != Workers::kNone || awaiting_job_end_) return;
    close_store();
    emit(CloseLink{});
    emit(*exit_);
    exited_ = true;
  }

  void close_store() {
    if (serving_store_) emit(CloseStore{round_});
    serving_store_ = false;
  }

  // ---- helpers ----

  bool is_static() const { return join_.settings.rdzv_backend == kStaticBackend; }
  static int exit_code(ExitCode code) { return static_cast<int>(code); }
  void emit(AgentAction action) { out_.push_back(std::move(action)); }
  void tell(LogLevel level, std::string text) { emit(Tell{level, std::move(text)}); }

  // Numbered: kept until the rendezvous has it, sent now if there is a link.
  void say(AgentMessage message) {
    AgentEnvelope envelope = channel_.number(std::move(message));
    if (link_ == Link::kUp) emit(Send{std::move(envelope)});
  }

  // Not numbered, so not kept: in a round where all goes well the rendezvous says nothing, and
  // would acknowledge nothing. Only while it hears it.
  void mention(std::uint64_t round, AgentMessage message) {
    if (round != round_ || workers_ != Workers::kLive || link_ != Link::kUp || exit_) return;
    emit(Send{channel_.plain(std::move(message))});
  }

  void say_join() {
    Join join = join_;
    join.session = session_;
    join.store_port = bound_port_;
    joined_at_ = now_;
    emit(Send{channel_.plain(std::move(join))});
  }

  const AgentOptions options_;
  const Join join_;

  TimePoint now_{};
  std::vector<AgentAction> out_;
  Channel<AgentMessage> channel_;
  Link link_ = Link::kDown;
  Workers workers_ = Workers::kNone;
  std::string session_;              // empty: not welcome yet
  bool embedded_ = false;            // the rendezvous won't come back once gone
  std::uint64_t oldest_resent_ = 0;  // on the last connection; 0: nothing was
  int num_untaken_ = 0;              // connections in a row that ended before the rendezvous had it
  std::string local_address_;        // of the link
  TimePoint answered_at_{};          // what the rendezvous has answered last was sent then
  std::chrono::milliseconds keep_alive_{0};
  TimePoint joined_at_{};  // when the last Join was sent
  ClockOffset clock_;
  std::uint64_t round_ = 0;
  bool prewarmed_ = false;       // workers wait for a round
  bool failed_ = false;          // a worker of round_ failed
  WorkerFailure failure_;        // if failed_
  std::uint64_t last_step_ = 0;  // of round_, once its workers are gone
  std::string last_told_;
  std::string waiting_text_;                 // to be told when patience_until_ has come
  std::optional<TimePoint> patience_until_;  // a wait that ends before is not worth a line

  bool binding_ = false;  // BindStore was emitted, its answer is due
  std::string bind_address_;
  std::uint16_t bound_port_ = 0;  // 0: no listener is ready for the next round
  bool serving_store_ = false;    // the store of round_
  bool stopped_unsaid_ = false;   // WorkersStopped waits for the listener

  std::optional<Exit> exit_;       // decided; carried out once the workers are gone
  bool awaiting_job_end_ = false;  // Leave was sent
  bool signalled_ = false;
  bool exited_ = false;

  std::optional<TimePoint> reach_deadline_;    // without link: when Connect gives up
  std::optional<TimePoint> welcome_deadline_;  // Link::kOpen
  std::optional<TimePoint> leave_deadline_;    // awaiting_job_end_
  std::optional<TimePoint> stop_deadline_;     // Workers::kStopping
};

AgentMachine::AgentMachine(AgentOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
AgentMachine::~AgentMachine() = default;
AgentMachine::AgentMachine(AgentMachine&&) noexcept = default;
AgentMachine& AgentMachine::operator=(AgentMachine&&) noexcept = default;

std::vector<AgentAction> AgentMachine::step(const AgentEvent& event, Clock::time_point now) {
  return impl_->step(event, now);
}

std::optional<Clock::time_point> AgentMachine::next_deadline() const {
  return impl_->next_deadline();
}

bool AgentMachine::exited() const { return impl_->exited(); }

}  // namespace ddprun::membership
