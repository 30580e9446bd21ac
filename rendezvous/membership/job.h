// SPDX-License-Identifier: Apache-2.0
// One job: its nodes' messages and absences in, pushes out. Decides nothing by itself; formation.h
// and verdicts.h do. Pure.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/log_level.h"
#include "rendezvous/membership/hang_verdict.h"
#include "rendezvous/membership/state.h"

namespace ddprun::membership {

class Job {
 public:
  // Settings and time-outs are the first node's, `owner` is its ConnectionFacts::user. `options`
  // must outlive the job.
  Job(const MachineOptions& options, std::uint64_t number, const Join& first,
      std::optional<std::uint32_t> owner, Clock::time_point now);
  // One of an earlier rendezvous process: its nodes have restore_grace to come back.
  Job(const MachineOptions& options, std::uint64_t number, JobState state, Clock::time_point now,
      Actions& out);

  // A new agent, or one that knows() recognises and that comes back. Answers Welcome or Refused.
  // True when the connection now belongs to this job. A new one: the job must not have ended.
  bool join(ConnectionId connection, const ConnectionFacts& facts, const AgentEnvelope& envelope,
            const std::function<std::string()>& new_session, Clock::time_point now, Actions& out);

  // From a connection that join() took in; false: the peer broke the protocol and was cut off.
  bool message(ConnectionId connection, const AgentEnvelope& envelope, Clock::time_point now,
               Actions& out);
  void heard(ConnectionId connection, Clock::time_point now);
  void closed(ConnectionId connection, Clock::time_point now, Actions& out);
  void store_lost(ConnectionId connection, const std::string& why, Clock::time_point now,
                  Actions& out);
  void tick(Clock::time_point now, Actions& out);
  // Refuses every node; the job is empty afterwards. Before the first round only.
  void turn_away(const Refused& refused, Clock::time_point now, Actions& out);

  std::optional<Clock::time_point> next_deadline() const;

  const JobState& state() const { return state_; }
  bool ended() const { return state_.phase == JobPhase::kEnded; }
  bool empty() const { return state_.nodes.empty(); }
  // Nobody is in it, and nobody will hear of what is known of it: a job whose first nodes were
  // unfit waits for the others, to tell them.
  bool is_over() const {
    const bool waits = awaits_first_round() && !state_.excluded.empty() && state_.deadlines.join;
    return empty() && !waits;
  }
  // Whether `join` comes from an agent that this job has taken in already.
  bool knows(const Join& join) const;
  bool awaits_first_round() const {
    return state_.phase == JobPhase::kForming && state_.round == 0;
  }
  // `other` waits here, too, and may be meant to be this job: tells the nodes that wait.
  void hint_at(const Job& other, Clock::time_point now, Actions& out);
  JobStatus status() const;
  // As JobTable::seconds().
  PhaseSeconds seconds(Clock::time_point now) const;
  std::uint64_t number() const { return number_; }
  std::optional<Seat> seat(ConnectionId connection) const;
  // As JobTable's.
  TailRoute ask_for_tail(int global_rank, std::uint64_t request, Actions& out);

  // For the journal (JobRows).
  void collect_changes(journal::Batch& batch);
  void erase_rows(journal::Batch& batch);

 private:
  using TimePoint = Clock::time_point;
  using Optional = std::optional<TimePoint>;

  // Messages of agents.
  void handle(Node& node, const WorkersRunning& message, TimePoint now, Actions& out);
  void handle(Node& node, const WorkerFailed& message, TimePoint now, Actions& out);
  void handle(Node& node, const WorkersSucceeded& message, TimePoint now, Actions& out);
  void handle(Node& node, const FirstStep& message, TimePoint now, Actions& out);
  void handle(Node& node, const WorkersStopped& message, TimePoint now, Actions& out);
  void handle(Node& node, const WorkerRequest& message, TimePoint now, Actions& out);
  void handle(Node& node, const WorkersLeft& message, TimePoint now, Actions& out);
  void handle(Node& node, const Preempted& message, TimePoint now, Actions& out);
  void handle(Node& node, const Leave& message, TimePoint now, Actions& out);
  bool goes_on_without(const Node& node, const Leave& message) const;
  void leave_alone(Node& node, const Leave& message, TimePoint now, Actions& out);
  void handle(Node& node, const RecordsWanted& message, TimePoint now, Actions& out);
  void handle(Node& node, const CutOff& message, TimePoint now, Actions& out);
  void handle(Node& node, const Stalled& message, TimePoint now, Actions& out);
  void handle(Node& node, const Inspection& message, TimePoint now, Actions& out);
  void handle(Node& node, const StepTimes& message, TimePoint now, Actions& out);
  void handle(Node& node, const Tail& message, TimePoint now, Actions& out);
  bool took_in_passing(ConnectionId connection, const AgentEnvelope& envelope, TimePoint now,
                       Actions& out);
  bool is_current(const Node& node, std::uint64_t round) const;

  // Changes of the job's phase.
  void form_if_ready(TimePoint now, Actions& out);
  std::chrono::milliseconds last_call_time() const;  // MIN nodes are there: how long MAX is awaited
  // `order`: nodes by node rank.
  void start_round(const std::vector<NodeId>& order, bool in_place, TimePoint now, Actions& out);
  void stop_round(RoundEnd how, const std::string& reason, TimePoint now, Actions& out);
  void record_round(const std::vector<NodeId>& order, int world_size, bool in_place, TimePoint now);
  void name_round_failures();
  void round_stopped_if_all(TimePoint now, Actions& out);
  void await_nodes(TimePoint now);
  std::string await_backoff(TimePoint now);
  void count_first_failure(Node& node, Actions& out);
  void uncount_first_failure(const RoundFailures::Entry& entry);
  void first_failure_was_earlier(Node& node, const RoundFailures::Entry& not_first, Actions& out);
  void loss_was_earlier(const std::string& what, Actions& out);
  // `node`: whose failure it is; nullptr: nobody's.
  void round_failed(Node* node, const WorkerFailure& failure, TimePoint now, Actions& out);
  void count_progress(const std::string& reason);
  void exclude(Node& node, const std::string& reason, Actions& out);
  void keep_out(const Join& join, const ConnectionFacts& facts, Actions& out);
  void dismiss(Node& node, Actions& out);
  void node_finished(Node& node, TimePoint now, Actions& out);
  // `how`: of its live round, if it has one.
  void end(JobEnd verdict, RoundEnd how, TimePoint now, Actions& out);
  void tell_round_over(Actions& out) const;

  // Warnings.
  void preempt_idle(Node& node, const Preempted& message, TimePoint now, Actions& out);
  void time_is_over(const std::string& what, TimePoint now, Actions& out);
  void settle_preemption();
  bool serves_rendezvous(const Node& node) const;

  // Rounds that go on in place.
  void workers_kept(Node& node, int count, TimePoint now, Actions& out);
  void stop_kept(const std::string& why, TimePoint now, Actions& out);

  // Ranks that hang or lag (job_hang.cc).
  void inquire(TimePoint now, Actions& out);
  void hang_deadline(TimePoint now, Actions& out);
  void conclude_inquiry(TimePoint now, Actions& out);
  std::optional<TrainingStatus> training() const;  // over all nodes that said something
  std::vector<std::string> find_stragglers() const;

  // Nodes that come and go.
  void admit(ConnectionId connection, const ConnectionFacts& facts, const Join& join,
             const std::string& session, TimePoint now, Actions& out);
  void restart_for_joined(TimePoint now, Actions& out);
  void settle_join_restarts(TimePoint now);
  void take_rank_wish(const Node& node, TimePoint now, Actions& out);
  void come_back(Node& node, ConnectionId connection, const ConnectionFacts& facts,
                 const AgentEnvelope& envelope, TimePoint now, Actions& out);
  TimePoint without_rendezvous_until(const Node& node) const;
  void lose(NodeId id, bool by_silence, const std::string& how, TimePoint now, Actions& out);
  void member_lost(const std::string& what, TimePoint now, Actions& out);
  void erase(NodeId id, Actions& out);
  void check_presence(TimePoint now, Actions& out);
  bool is_second_look(TimePoint now);
  void returned(Node& node);
  void index(const Node& node);

  // Pushes.
  void push(Node& node, RendezvousMessage message, Actions& out);
  void tell(const Node& node, RendezvousMessage message,
            Actions& out);  // not numbered, may be lost
  void welcome(const Node& node, TimePoint now, Actions& out);
  void tell_spare(const Node& node, Actions& out);
  void tell_waiting(TimePoint now, Actions& out);

  void set_phase(Node& node, NodePhase phase);
  void set_excluded(Node& node, bool excluded);
  void set_connection(Node& node, std::optional<ConnectionId> connection);
  int num_members(NodePhase phase) const {
    return members_in_phase_[static_cast<std::size_t>(phase)];
  }
  int num_members() const;
  void log(Actions& out, LogLevel level, const std::string& text) const;
  Node* node_at(ConnectionId connection);
  std::chrono::milliseconds stop_limit() const;

  const MachineOptions& options_;
  const std::uint64_t number_;  // in the journal
  JobState state_;
  JobRows rows_;
  bool changed_ = true;          // since collect_changes(), maybe
  PhaseSeconds seconds_before_;  // of an earlier process
  Optional ended_at_;
  Clock::duration unnoticed_{};  // how long before now the loss or hang came that is being handled
  HangWatch hang_;               // kRunning only
  std::uint64_t recorded_round_ = 0;  // the last one whose nodes were asked for their records
  // Counts over state_.nodes, kept so that each message costs O(1).
  int num_placeable_ = 0;
  std::array<int, kNumNodePhases> members_in_phase_{};
  std::unordered_map<ConnectionId, NodeId> by_connection_;
  std::unordered_map<std::string, NodeId> by_session_;
  std::unordered_map<std::string, NodeId> by_instance_;

  int num_returning_ = 0;     // nodes of an earlier process that have not come back
  Optional returning_until_;  // until then they may
  TimePoint restored_at_{};   // where there was an earlier process
  Optional presence_check_;   // no node's keep-alive or grace ends before this
  Optional second_look_;      // of it, at nodes that were found silent
  Optional waiting_due_;      // the next Waiting to all
  std::string waiting_hint_;  // what each Waiting says besides the counts
  TimePoint last_waiting_{};

  static constexpr std::chrono::milliseconds kNextRoundLastCall{1'000};
  static constexpr std::chrono::milliseconds kWaitingInterval{1'000};
  static constexpr std::chrono::milliseconds kWaitingPerNode{1};  // thousands hear it less often
};

}  // namespace ddprun::membership
