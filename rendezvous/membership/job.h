// SPDX-License-Identifier: Apache-2.0
// One job: its nodes' messages and absences in, pushes out. Looks up each event in the table of
// states and events (job_events.h), and hands it to the class that it concerns. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/job_events.h"
#include "rendezvous/membership/rounds.h"

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
  // The classes below refer to each other and to the state.
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // An agent is new, or comes back and knows() recognises it. Answers Welcome or Refused. True when
  // the connection now belongs to this job. Needs takes_newcomers() for a new agent.
  bool join(ConnectionId connection, const ConnectionFacts& facts, const AgentEnvelope& envelope,
            const std::function<std::string()>& new_session, Clock::time_point now, Actions& out);

  // From a connection that join() took in; false: the peer broke the protocol and was cut off.
  bool message(ConnectionId connection, const AgentEnvelope& envelope, Clock::time_point now,
               Actions& out);
  void heard(ConnectionId connection, Clock::time_point now) { roster_.heard(connection, now); }
  void closed(ConnectionId connection, Clock::time_point now);
  void store_lost(ConnectionId connection, const std::string& why, Clock::time_point now,
                  Actions& out);
  void tick(Clock::time_point now, Actions& out);
  // Refuses every node; the job is empty afterwards. Before the first round only.
  void turn_away(const Refused& refused, Actions& out);

  std::optional<Clock::time_point> next_deadline() const;

  const JobState& state() const { return state_; }
  bool ended() const { return state_.phase == JobPhase::kEnded; }
  bool takes_newcomers() const { return reaction(JobEvent::kNewcomer) != Reaction::kElsewhere; }
  bool empty() const { return state_.nodes.empty(); }
  // The job has no nodes, and nobody to tell its end to. A job whose first nodes were unfit waits
  // for the others, to tell them.
  bool is_over() const {
    const bool waits = awaits_first_round() && !state_.excluded.empty() && state_.deadlines.join;
    return empty() && !waits;
  }
  // Whether `join` comes from an agent that this job has taken in already.
  bool knows(const Join& join) const { return roster_.known(join).has_value(); }
  bool awaits_first_round() const {
    return state_.phase == JobPhase::kForming && state_.round == 0;
  }
  // `other` waits here, too, and may be meant to be this job: tells the nodes that wait.
  void hint_at(const Job& other, Clock::time_point now, Actions& out);
  // Without its nodes, and these.
  JobStatus status() const;
  std::vector<NodeStatus> node_statuses() const;
  std::size_t num_connected() const { return roster_.num_connected(); }
  // As JobTable::seconds().
  PhaseSeconds seconds(Clock::time_point now) const { return rounds_.seconds(now); }
  std::uint64_t number() const { return number_; }
  std::optional<Seat> seat(ConnectionId connection) const;
  // As JobTable's.
  std::vector<TailRoute> ask_for_tails(const TailQuestion& question, Actions& out) const;

  // For the journal (JobRows).
  void collect_changes(journal::Batch& batch);
  void erase_rows(journal::Batch& batch);

 private:
  using TimePoint = Clock::time_point;

  Job(const MachineOptions& options, std::uint64_t number, JobState state, TimePoint now);
  Reaction reaction(JobEvent event) const { return reaction_to(event, state_.phase); }
  bool newcomer(ConnectionId connection, const ConnectionFacts& facts, const Join& join,
                const std::function<std::string()>& new_session, TimePoint now, Actions& out);
  bool took_in_passing(ConnectionId connection, const AgentEnvelope& envelope, TimePoint now,
                       Actions& out);
  void handle(Node& node, const AgentMessage& message, TimePoint now, Actions& out);
  void hang_found(std::optional<Hang> hang, TimePoint now, Actions& out);
  void check_presence(TimePoint now, Actions& out);
  std::optional<TimePoint> deadline(JobEvent event) const;
  void deadline_over(JobEvent event, TimePoint now, Actions& out);
  TailRoute ask_node(const Node& node, const TailWanted& wanted, Actions& out) const;

  const std::uint64_t number_;  // in the journal
  JobState state_;
  JobRows rows_;
  bool changed_ = true;  // since collect_changes(), maybe

  // Each reads the whole state, and changes its own part of it. A class calls those above it only.
  // Roster knows and tells the nodes; Blame and HangInquiry say what follows for the job; Rounds
  // does it.
  Roster roster_;
  Blame blame_;
  HangInquiry hang_;
  Rounds rounds_;
};

}  // namespace ddprun::membership
