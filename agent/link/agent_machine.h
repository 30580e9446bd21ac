// SPDX-License-Identifier: Apache-2.0
// The agent's side of the conversation. It decides what one node does when the rendezvous, its
// workers or its user say something. It binds the next store's port; its owner carries out all
// other actions. It has no clock and no thread.
//
//   AgentMachine machine(options, bind);
//   perform(machine.step(agent_event::Start{}, now));            // → Connect
//   …each event as it happens: perform(machine.step(event, now));
//   …and a timer armed at machine.next_deadline(), which feeds Timer{}.
//
// The events and actions of a healthy run: Connect → LinkUp → [a store is bound] Send(Join) →
// Welcome → StartRound → [ServeStore] Spawn → Running → Succeeded → JobEnd(0) → StopWorkers →
// WorkersGone → [CloseStore] Exit(0).
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
#include "common/death_limits.h"
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/messages/job_settings.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// Decides which waits of a node its user is told of, and when.
class WaitNews {
 public:
  // Called when the first wait begins. If it is over within kPatience, the user isn't told.
  void begin(Clock::time_point now) { patience_until_ = now + kPatience; }

  // Returns the line to tell now; nullopt: there is nothing new, or it is not time yet.
  std::optional<std::string> hear(const Waiting& waiting, Clock::time_point now) {
    std::string text = waiting.note;
    if (text.empty()) {
      text = concat("waiting for nodes: ", waiting.have_nodes, " of ", waiting.need_nodes,
                    " are here");
    }
    if (!is_news(text)) return std::nullopt;
    // Single nodes that come shortly after each other are not worth a line.
    const bool counts = waiting.need_nodes > 0;
    if (!counts || !patience_until_ || now >= *patience_until_) return text;
    held_back_ = std::move(text);
    return std::nullopt;
  }
  // Returns the line that is due at due().
  std::optional<std::string> take_due(Clock::time_point now) {
    if (held_back_.empty() || !patience_until_ || now < *patience_until_) return std::nullopt;
    return std::exchange(held_back_, {});
  }
  std::optional<Clock::time_point> due() const {
    return held_back_.empty() ? std::nullopt : patience_until_;
  }
  // Whether `text` differs from the line that was told last. It counts as told from now on.
  bool is_news(const std::string& text) {
    if (text == last_) return false;
    last_ = text;
    return true;
  }

  // Called when a round starts. From then on each new wait is told at once.
  void round_started() {
    held_back_.clear();
    patience_until_.reset();
  }
  // Drops the line that is not told yet.
  void forget() { held_back_.clear(); }

 private:
  static constexpr std::chrono::milliseconds kPatience{2'000};

  std::string last_;
  std::string held_back_;  // until patience_until_
  std::optional<Clock::time_point> patience_until_;
};

// Binds the port of the next round's store and listens on it. An empty address means all
// interfaces, port 0 means any free one. Closes a listener that was bound before and not yet
// served. Returns the port; throws Error.
using BindStore = std::function<std::uint16_t(const std::string& address, std::uint16_t port)>;

// The state of a round's store listener at this node: where it is bound, and whether there is one
// for the next round. The owner binds, serves and closes.
class StoreListener {
 public:
  // `join` must outlive it. `port`: --master-port; 0: any free one.
  StoreListener(const Join& join, std::uint16_t port, BindStore bind);

  // Binds a listener for the next round, unless there is one, or the store is at the endpoint. On
  // failure trouble() is set. `local_address`: this node's end of its link to the rendezvous.
  void prepare(const std::string& local_address);
  // The port of the next round's listener; 0: there is none.
  std::uint16_t port() const { return bound_port_; }
  // Returns why there is none; empty: nothing went wrong.
  const std::string& trouble() const { return trouble_; }

  // Called when the round starts: the listener serves it, and the next round needs another.
  void serve();
  // Returns whether a store was served. None is served after this call.
  bool close();

 private:
  const Join& join_;
  const std::uint16_t port_;
  const BindStore bind_;
  std::uint16_t bound_port_ = 0;
  bool is_serving_ = false;
  std::string trouble_;
};

// A time on the rendezvous' clock (since that clock's epoch). The true time is within ± error.
struct RemoteMoment {
  std::chrono::microseconds at{0};
  std::chrono::microseconds error{0};
};

// How far the rendezvous' monotonic clock is from this node's, measured as NTP does it. A question
// is sent, the other side answers with its clock's time, and the answer arrives.
class ClockOffset {
 public:
  // Adds a measurement. `sent` and `received` are times of this node's clock; in between the
  // rendezvous' clock showed `answered`. A `received` before `sent` is ignored.
  void sample(Clock::time_point sent, std::chrono::microseconds answered,
              Clock::time_point received) {
    if (received < sent) return;
    const auto half = (received - sent) / 2;
    samples_.push_back(
        {sent + half, answered, std::chrono::duration_cast<std::chrono::microseconds>(half)});
    if (samples_.size() > kKept) samples_.pop_front();
  }

  // Returns the time `when` of this node's clock on the rendezvous' clock, by the sample with the
  // least error. The error is half the round trip, plus what two clocks may have drifted apart
  // since (kDrift). nullopt: there is no sample yet.
  std::optional<RemoteMoment> remote(Clock::time_point when) const {
    using std::chrono::microseconds;
    std::optional<RemoteMoment> best;
    for (const Sample& sample : samples_) {
      const auto since = std::chrono::duration_cast<microseconds>(when - sample.middle);
      const auto drift = microseconds(static_cast<microseconds::rep>(
          static_cast<double>(std::chrono::abs(since).count()) * kDrift));
      const RemoteMoment moment{sample.remote + since, sample.half_round_trip + drift};
      if (!best || moment.error < best->error) best = moment;
    }
    return best;
  }

  // Forgets all samples: the other side may be another machine from now on.
  void reset() { samples_.clear(); }

  static constexpr std::size_t kKept = 8;  // the last samples
  static constexpr double kDrift = 200e-6;

 private:
  struct Sample {
    Clock::time_point middle;          // of the round trip, by this node's clock
    std::chrono::microseconds remote;  // the rendezvous' clock at that time
    std::chrono::microseconds half_round_trip;
  };
  std::deque<Sample> samples_;
};

struct AgentOptions {
  Join join;  // as the launcher knows it; the machine adds session and store_port
  // The rendezvous' endpoints as given, at least one. In static mode this one is also
  // MASTER_ADDR/PORT.
  std::vector<Endpoint> endpoints;
  std::uint16_t store_port = 0;  // --master-port outside static mode; 0 = any free port
  std::chrono::milliseconds connect_timeout{60'000};  // for the first connection
  std::chrono::milliseconds welcome_timeout{30'000};  // from Join to Welcome
  // For a lost rendezvous that was embedded in a node's ddprun.
  std::chrono::milliseconds embedded_lost_timeout{3'000};
  // Added to the shutdown time: until WorkersGone.
  std::chrono::milliseconds stop_margin{kWorkersGoneMargin};
  // The time between pings. If it is 0, or more than half the keep-alive time, a third of that is
  // used.
  std::chrono::milliseconds keep_alive_interval{0};
  bool prewarm = false;  // a spare starts its workers before it has a place for them
  // A worker of this very job started this ddprun. It can't wait for that worker's end.
  bool in_own_job = false;
  // The grace period of a node that is cut off, in place of --shutdown-timeout.
  std::chrono::milliseconds fence_grace{kFenceGrace};
};

class AgentMachine {
 public:
  // `bind` is called within step(), before each Join and each WorkersStopped.
  AgentMachine(AgentOptions options, BindStore bind)
      : options_(std::move(options)),
        join_(options_.join),
        store_(join_, options_.store_port, std::move(bind)) {}

  // Takes one event and returns the actions that follow from it. After Exit every event returns
  // nothing. `now` never goes back. Events that don't fit the state (a late one of an old round)
  // change nothing.
  std::vector<AgentAction> step(const AgentEvent& event, Clock::time_point now);

  // Returns when Timer is due. nullopt: the machine waits only for running workers.
  std::optional<Clock::time_point> next_deadline() const;

  bool exited() const { return exited_; }

 private:
  using TimePoint = Clock::time_point;
  static constexpr int kMostUntaken = 3;

  enum class Link { kDown, kOpen, kUp };  // kOpen: connected, not yet welcome
  // kKeeping: the round is over, and it is being found out whether the workers can go on in the
  // next one. kKept: they can, and wait for it.
  enum class Workers { kNone, kLive, kKeeping, kKept, kStopping };

  // ---- the link ----

  void on(const agent_event::Start&);
  void on(const agent_event::LinkUp& event);
  void on(const agent_event::LinkAnswered& event);
  void on(const agent_event::ClockSampled& event);
  void on(const agent_event::LinkDown& event);
  void on(const agent_event::LinkFailed& event);
  // Connects again, or gives up after reach_deadline_. `trouble` says what is wrong with the
  // rendezvous.
  void reach_again(const std::string& trouble);
  void unreachable(const std::string& message);
  // Returns HOST:PORT of the latest connection's rendezvous, or of all endpoints.
  std::string where() const;

  // ---- the rendezvous' messages ----

  void on(const agent_event::LinkMessage& event);
  void hear(const Welcome& welcome);
  bool fits(const Welcome& welcome, std::uint64_t ack);
  // Gives up if the rendezvous can't read a message of this node: it would end each connection, for
  // ever.
  void give_up_if_nothing_is_taken();
  void hear(const Waiting& waiting);
  void hear(const StartRound& start);
  bool go_on(const StartRound& start);
  void decline(const std::string& why);  // says that round_ is not started
  void hear(const Preempt& preempt);
  void hear(const StopRound& stop);
  void hear(const membership::Inspect& inspect);
  void hear(const HangVerdict& verdict);
  void hear(const membership::Record& record);
  void hear(const TailWanted& wanted);
  void hear(const JobEnd& end);
  void hear(const Refused& refused);

  // Begins as if nothing had been reached yet. Before the first round there is no numbered message.
  void start_over(const std::string& why);

  // ---- the workers ----

  void on(const agent_event::WorkersRunning& event) { say_of_round(event.round, event); }
  void on(const agent_event::WorkerFailed& event);
  void on(const agent_event::WorkersSucceeded& event) { say_of_round(event.round, event); }
  void date_failure(TimePoint died_at);
  // Says that no worker of round_ is left, or that they are kept.
  void say_stopped();
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

  // Whether the workers live and nothing has told them to end.
  bool are_on() const {
    return workers_ == Workers::kLive || workers_ == Workers::kKeeping ||
           workers_ == Workers::kKept;
  }
  // Stops the workers. May be called again; a shorter grace shortens the wait.
  void stop_workers(std::chrono::milliseconds grace, bool after_records = false);
  // Stops the workers because the round is over: with the usual grace, and after flight recorders
  // are written.
  void stop_in_order() { stop_workers(join_.timeouts.shutdown, true); }

  // Sets the lease to the time until which the rendezvous can't have started another round without
  // this node's workers.
  void renew_lease();

  // Whether nothing was heard for so long that the rendezvous may have given this node up.
  bool is_overdue() const { return keep_alive_.count() > 0 && now_ >= answered_at_ + keep_alive_; }

  // Ends the lease: no other round can come unless this node agrees.
  void end_lease();

  // Stops the workers of a node that is cut off: others may soon go on without it.
  void fence();
  std::string after_standstill(const std::string& reason) const;

  // ---- the user, time and the end ----

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

  // Says a numbered message: it is kept until the rendezvous has it, and sent now if there is a
  // link.
  void say(AgentMessage message);

  // Does the same as say(), if workers of that round live.
  void say_of_round(std::uint64_t round, AgentMessage message);

  // Sends a message that is not numbered, so not kept, and only while the link is up. In a round
  // where all goes well the rendezvous says nothing, so it would acknowledge nothing.
  void mention(std::uint64_t round, AgentMessage message);

  void say_join();
  void leave_without_store();

  const AgentOptions options_;
  const Join join_;
  std::string unfit_;  // as in Start

  TimePoint now_{};
  std::vector<AgentAction> out_;
  Channel<AgentMessage> channel_;
  Link link_ = Link::kDown;
  Workers workers_ = Workers::kNone;
  std::string session_;              // empty: not welcome yet
  int num_lives_ = 0;                // how often it was started over
  bool embedded_ = false;            // the rendezvous won't come back once it is gone
  std::uint64_t oldest_resent_ = 0;  // resent on the last connection; 0: nothing was
  int num_untaken_ = 0;  // connections in a row that ended before the rendezvous had that message
  std::string local_address_;          // of this end of the link
  std::optional<Endpoint> linked_to_;  // nullopt: there was no link yet
  TimePoint answered_at_{};            // when the ping was sent that the rendezvous answered last
  std::optional<TimePoint> left_at_;   // when a signal of the user's made this node leave
  // How long this process stood still in this round; zero: it didn't.
  Clock::duration stood_still_{};
  std::chrono::milliseconds keep_alive_{0};
  TimePoint joined_at_{};  // when the last Join was sent
  ClockOffset clock_;
  std::uint64_t round_ = 0;
  struct ToldHang {
    std::string text;
    TimePoint at;
  };
  std::optional<ToldHang> hang_;  // the last one of round_: perhaps why somebody ends the job
  bool prewarmed_ = false;        // workers without a place wait for a round
  bool failed_ = false;           // a worker of round_ failed
  bool recorded_ = false;         // Record was emitted for round_
  WorkerFailure failure_;         // if failed_
  std::optional<Stalled> stalled_unsaid_;  // not said yet, since there was no link
  std::optional<StepTimes> steps_;         // all that was said of the round's step times
  std::uint64_t last_step_ = 0;            // of round_, once its workers are gone
  TimePoint gone_at_{};                    // when its workers were gone
  int num_kept_ = 0;                       // the number of workers, in Workers::kKept
  std::uint64_t declined_ = 0;             // a round that came while they were being stopped
  WaitNews waits_;

  StoreListener store_;

  std::optional<agent_action::Exit> exit_;  // decided; it is carried out once the workers are gone
  bool awaiting_job_end_ = false;           // Leave was sent
  bool signalled_ = false;
  // The signal that stops the workers: the number of Signal or Abandoned, if one came.
  int stop_signal_ = SIGTERM;
  bool exited_ = false;

  std::optional<TimePoint> reach_deadline_;    // without a link: when Connect gives up
  std::optional<TimePoint> welcome_deadline_;  // for Link::kOpen
  std::optional<TimePoint> leave_deadline_;    // for awaiting_job_end_
  std::optional<TimePoint> stop_deadline_;     // for Workers::kStopping
  std::optional<TimePoint> keep_deadline_;     // for Workers::kKeeping
};

}  // namespace ddprun::membership
