// SPDX-License-Identifier: Apache-2.0
// The agent's side of the conversation: what one node does with what the rendezvous, its workers
// and its user say. Pure: no I/O, clock or thread; the owner carries the actions out.
//
//   AgentMachine machine(options, Clock::now());
//   perform(machine.step(agent_event::Start{}, now));            // → Connect
//   …each event as it happens: perform(machine.step(event, now));
//   …and a timer armed at machine.next_deadline(), which feeds Timer{}.
//
// Order of a healthy run: Connect → LinkUp → BindStore → StoreBound → Send(Join) → Welcome →
// StartRound → [ServeStore] Spawn → Running → Succeeded → JobEnd(0) → StopWorkers → WorkersGone →
// [CloseStore] Exit(0).
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/link/agent_events.h"
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "rendezvous/messages/job_settings.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// A moment on the rendezvous' clock (since that clock's epoch); the truth is within ± error.
struct RemoteMoment {
  std::chrono::microseconds at{0};
  std::chrono::microseconds error{0};
};

// How far the rendezvous' monotonic clock is from this node's, measured as NTP does it: a question
// leaves, is answered with the other clock's time, and the answer comes.
class ClockOffset {
 public:
  // `sent` and `received` by our clock; in between the rendezvous' clock showed `answered`. A
  // `received` before `sent` is ignored.
  void sample(Clock::time_point sent, std::chrono::microseconds answered,
              Clock::time_point received);

  // Our moment `when` on the rendezvous' clock, by the sample that knows best: half its round trip,
  // and what two clocks may drift apart since (kDrift), is its error. nullopt: no sample yet.
  std::optional<RemoteMoment> remote(Clock::time_point when) const;

  // The other side may be another machine from now on.
  void reset() { samples_.clear(); }

  static constexpr std::size_t kKept = 8;  // the last ones
  static constexpr double kDrift = 200e-6;

 private:
  struct Sample {
    Clock::time_point middle;          // of the round trip
    std::chrono::microseconds remote;  // then
    std::chrono::microseconds half_round_trip;
  };
  std::deque<Sample> samples_;
};

struct AgentOptions {
  Join join;  // as the launcher knows it; session, store_port are the machine's
  // Rendezvous endpoints as given, at least one. In static mode the one is MASTER_ADDR/PORT, too.
  std::vector<Endpoint> endpoints;
  std::uint16_t store_port = 0;  // --master-port outside static mode; 0 = any free port
  std::chrono::milliseconds connect_timeout{60'000};          // first connection
  std::chrono::milliseconds welcome_timeout{30'000};          // Join → Welcome
  std::chrono::milliseconds rendezvous_lost_timeout{60'000};  // workers kept without a rendezvous
  std::chrono::milliseconds embedded_lost_timeout{3'000};     // likewise, when it was embedded
  std::chrono::milliseconds leave_timeout{2'000};  // after Leave: until the job's end is confirmed
  std::chrono::milliseconds stop_margin{10'000};   // beyond stop_grace until WorkersGone
  // Between pings. 0, or more than half the keep-alive time: a third of that is used.
  std::chrono::milliseconds keep_alive_interval{0};
  bool prewarm = false;  // a spare starts its workers before it has a place for them
  bool in_own_job =
      false;  // a worker of this very job started it: it can't wait for that one's end
  // SIGTERM → SIGKILL of a node that is cut off.
  std::chrono::milliseconds fence_grace{kFenceGrace};
};

class AgentMachine {
 public:
  explicit AgentMachine(AgentOptions options)
      : options_(std::move(options)), join_(options_.join) {}

  // One event; the actions that follow from it. After Exit every event returns nothing. `now` never
  // goes back. Events that don't fit the state (a late one of an old round) change nothing.
  std::vector<AgentAction> step(const AgentEvent& event, Clock::time_point now);

  // When Timer is due. nullopt: nothing is waited for but workers that run.
  std::optional<Clock::time_point> next_deadline() const;

  bool exited() const { return exited_; }

 private:
  using TimePoint = Clock::time_point;
  static constexpr std::chrono::milliseconds kPatience{2'000};
  static constexpr int kMostUntaken = 3;

  enum class Link { kDown, kOpen, kUp };  // kOpen: connected, not yet welcome
  // kKeeping: the round is over, and it is found out whether they can go on in the next one; kKept:
  // they can, and wait for it.
  enum class Workers { kNone, kLive, kKeeping, kKept, kStopping };

  // ---- the link: agent_machine.cc ----

  void on(const agent_event::Start&);
  void on(const agent_event::LinkUp& event);
  void on(const agent_event::LinkAnswered& event);
  void on(const agent_event::ClockSampled& event);
  void on(const agent_event::LinkDown& event);
  void on(const agent_event::LinkFailed& event);
  // `trouble`: of that rendezvous, where reach_deadline_ has come.
  void reach_again(const std::string& trouble);
  void unreachable(const std::string& message);
  // HOST:PORT of the latest connection's rendezvous, or all there are.
  std::string where() const;

  // ---- the rendezvous' messages: agent_machine_round.cc ----

  void on(const agent_event::LinkMessage& event);
  void hear(const Welcome& welcome);
  bool fits(const Welcome& welcome, std::uint64_t ack);
  // A rendezvous that can't read a message ends the connection, and would do so for ever.
  void give_up_if_nothing_is_taken();
  void hear(const Waiting& waiting);
  void hear(const StartRound& start);
  bool go_on(const StartRound& start);
  void decline(const std::string& why);  // to start round_
  void hear(const Preempt& preempt);
  void hear(const StopRound& stop);
  void hear(const membership::Inspect& inspect);
  void hear(const HangVerdict& verdict);
  void hear(const membership::Record& record);
  void hear(const TailWanted& wanted);
  void hear(const JobEnd& end);
  void hear(const Refused& refused);

  // As if nothing had been reached yet; nothing numbered was said before the first round.
  void start_over(const std::string& why);

  // ---- the store's listener: agent_machine_round.cc ----

  void on(const agent_event::StoreBound& event);
  void on(const agent_event::StoreBindFailed& event);
  bool needs_store() const {
    return !store_is_at_endpoint(join_.settings) && bound_port_ == 0 && !binding_;
  }
  void bind_store();
  void leave_without_store();

  // ---- the workers: agent_machine_round.cc ----

  void on(const agent_event::WorkersRunning& event) { say_of_round(event.round, event); }
  void on(const agent_event::WorkerFailed& event);
  void on(const agent_event::WorkersSucceeded& event) { say_of_round(event.round, event); }
  void date_failure(TimePoint died_at);
  // No worker of round_ is left, or they are kept: once the next round's listener is bound.
  void say_stopped();
  WorkersStopped stopped_message() const;
  void on(const agent_event::WorkersFenced& event);
  void on(const agent_event::WorkerAsks& event) { say_of_round(event.round, event); }
  void on(const agent_event::WorkersLeft& event) { say_of_round(event.round, event); }
  void on(const agent_event::Warned& event);
  void on(const agent_event::FirstStepDone& event) {
    say_of_round(event.first_step.round, event.first_step);
  }
  void on(const agent_event::WorkersGone& event);
  void on(const agent_event::WorkersKept& event);
  void on(const agent_event::WorkersNotKept& event);
  void not_kept(const std::string& why);
  void on(const agent_event::RankStalled& event);
  void on(const agent_event::RecordsWanted& event);
  void on(const agent_event::RanksInspected& event);
  void record();  // once per round
  void on(const agent_event::StepsTimed& event);
  void on(const agent_event::TailRead& event);
  void on(const agent_event::NodeRead& event);

  // They may do as they like: nothing has told them to end.
  bool are_on() const {
    return workers_ == Workers::kLive || workers_ == Workers::kKeeping ||
           workers_ == Workers::kKept;
  }
  // May be called again; a shorter grace shortens the wait.
  void stop_workers(std::chrono::milliseconds grace, bool after_records = false);
  // The round is over: in order, and what is being recorded first.
  void stop_in_order() { stop_workers(join_.timeouts.stop_grace, true); }

  // Until when the rendezvous can't have started another round without this node's workers.
  void renew_lease();

  // Nothing was heard for so long that the rendezvous may have given this node up.
  bool is_overdue() const { return keep_alive_.count() > 0 && now_ >= answered_at_ + keep_alive_; }

  // No other round can come without this node's leave.
  void end_lease();

  // Cut off: others may go on without this node soon, so its workers must not.
  void fence();
  std::string after_standstill(const std::string& reason) const;

  // ---- the user, time and the end: agent_machine.cc ----

  void on(const agent_event::Signal& event);
  void on(const agent_event::Abandoned& event);
  void on(const agent_event::Timer&);

  void leave(Leave leave, int stop_signal);
  void decide_here(ExitCode code, std::string reason);
  void decide_here(JobEnd end);
  void finish_if_done();
  void close_store();

  // ---- helpers ----

  static int exit_code(ExitCode code) { return static_cast<int>(code); }
  void emit(AgentAction action) { out_.push_back(std::move(action)); }
  void tell(LogLevel level, std::string text) { emit(agent_action::Tell{level, std::move(text)}); }

  // Numbered: kept until the rendezvous has it, sent now if there is a link.
  void say(AgentMessage message);

  // As say(), if workers of that round live.
  void say_of_round(std::uint64_t round, AgentMessage message);

  // Not numbered, so not kept: in a round where all goes well the rendezvous says nothing, and
  // would acknowledge nothing. Only while it hears it.
  void mention(std::uint64_t round, AgentMessage message);

  void say_join();

  const AgentOptions options_;
  const Join join_;
  std::string unfit_;  // as Start had it

  TimePoint now_{};
  std::vector<AgentAction> out_;
  Channel<AgentMessage> channel_;
  Link link_ = Link::kDown;
  Workers workers_ = Workers::kNone;
  std::string session_;              // empty: not welcome yet
  int num_lives_ = 0;                // how often it was start_over()
  bool embedded_ = false;            // the rendezvous won't come back once gone
  std::uint64_t oldest_resent_ = 0;  // on the last connection; 0: nothing was
  int num_untaken_ = 0;              // connections in a row that ended before the rendezvous had it
  std::string local_address_;        // of the link
  std::optional<Endpoint> linked_to_;  // likewise; nullopt: there was none yet
  TimePoint answered_at_{};            // what the rendezvous has answered last was sent then
  std::optional<TimePoint> left_at_;   // by a signal of the user's
  Clock::duration stood_still_{};      // this process did, in this round: zero where it didn't
  std::chrono::milliseconds keep_alive_{0};
  TimePoint joined_at_{};   // when the last Join was sent
  bool join_said_ = false;  // on this connection
  ClockOffset clock_;
  std::uint64_t round_ = 0;
  bool prewarmed_ = false;                 // workers wait for a round
  bool failed_ = false;                    // a worker of round_ failed
  bool recorded_ = false;                  // Record was emitted for round_
  WorkerFailure failure_;                  // if failed_
  std::optional<Stalled> stalled_unsaid_;  // while there was no link
  std::optional<StepTimes> steps_;         // of its round: what was said of it, all together
  std::uint64_t last_step_ = 0;            // of round_, once its workers are gone
  TimePoint gone_at_{};                    // likewise: when that was
  int num_kept_ = 0;                       // Workers::kKept: of how many
  std::uint64_t declined_ = 0;             // a round that came while they were being stopped
  std::string last_told_;
  std::string waiting_text_;                 // to be told when patience_until_ has come
  std::optional<TimePoint> patience_until_;  // a wait that ends before is not worth a line

  bool binding_ = false;  // BindStore was emitted, its answer is due
  std::string bind_address_;
  std::uint16_t bound_port_ = 0;  // 0: no listener is ready for the next round
  bool serving_store_ = false;    // the store of round_
  bool stopped_unsaid_ = false;   // WorkersStopped waits for the listener
  std::string store_trouble_;     // why there is none; empty: nothing went wrong

  std::optional<agent_action::Exit> exit_;  // decided; carried out once the workers are gone
  bool awaiting_job_end_ = false;           // Leave was sent
  bool signalled_ = false;
  int stop_signal_ = SIGTERM;  // what stops the workers: the user's own signal, if it is that
  bool exited_ = false;

  std::optional<TimePoint> reach_deadline_;    // without link: when Connect gives up
  std::optional<TimePoint> welcome_deadline_;  // Link::kOpen
  std::optional<TimePoint> leave_deadline_;    // awaiting_job_end_
  std::optional<TimePoint> stop_deadline_;     // Workers::kStopping
  std::optional<TimePoint> keep_deadline_;     // Workers::kKeeping
};

// AgentMachine and what every owner of one needs: the queue that puts an action's own events after
// the actions of the event before, and one timer. Clock and timer are the owner's.
class AgentRunner {
 public:
  struct Hooks {
    std::function<Clock::time_point()> now;
    // May call handle(): that event's turn comes later.
    std::function<void(const AgentAction&)> perform;
    // Call handle(Timer{}) then, instead of at the time that was named last; nullopt: never. Only
    // called when it changes.
    std::function<void(std::optional<Clock::time_point>)> wake_at;
  };

  AgentRunner(AgentOptions options, Hooks hooks);

  // The event, and those that its actions cause. After drop() nothing.
  void handle(AgentEvent event);
  // The owner is gone: no hook is called any more.
  void drop();

  const AgentMachine& machine() const { return machine_; }

 private:
  void set_timer();

  const Hooks hooks_;
  AgentMachine machine_;
  std::deque<AgentEvent> waiting_;
  std::optional<Clock::time_point> wake_at_;
  bool handling_ = false;
  bool dropped_ = false;
};

}  // namespace ddprun::membership
