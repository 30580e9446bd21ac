// SPDX-License-Identifier: Apache-2.0
// The state of an AgentMachine. Private to its sources.
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/exit_codes.h"
#include "rendezvous/membership/agent_machine.h"
#include "rendezvous/membership/channel.h"
#include "rendezvous/membership/clock_offset.h"
#include "rendezvous/membership/job_settings.h"

namespace ddprun::membership {

class AgentMachine::Impl {
 public:
  using TimePoint = Clock::time_point;
  static constexpr std::chrono::milliseconds kPatience{2'000};
  static constexpr int kMostUntaken = 3;

  explicit Impl(AgentOptions options) : options_(std::move(options)), join_(options_.join) {}

  std::vector<AgentAction> step(const AgentEvent& event, TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  bool exited() const { return exited_; }

 private:
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
  void unreachable(const std::string& message);
  // HOST:PORT of the latest connection's rendezvous, or all there are.
  std::string where() const;

  // ---- the rendezvous' messages: agent_machine_messages.cc ----

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

  // ---- the store's listener: agent_machine_workers.cc ----

  void on(const agent_event::StoreBound& event);
  void on(const agent_event::StoreBindFailed& event);
  bool needs_store() const {
    return !store_is_at_endpoint(join_.settings) && bound_port_ == 0 && !binding_;
  }
  void bind_store();

  // ---- the workers: agent_machine_workers.cc ----

  void on(const agent_event::WorkersRunning& event);
  void on(const agent_event::WorkerFailed& event);
  void on(const agent_event::WorkersSucceeded& event);
  void date_failure(TimePoint died_at);
  // No worker of round_ is left, or they are kept: once the next round's listener is bound.
  void say_stopped();
  WorkersStopped stopped_message() const;
  void on(const agent_event::WorkersFenced& event);
  void on(const agent_event::WorkerAsks& event);
  void on(const agent_event::WorkersLeft& event);
  void on(const agent_event::Warned& event);
  void on(const agent_event::FirstStepDone& event);
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

}  // namespace ddprun::membership
