// SPDX-License-Identifier: Apache-2.0
// One job. It takes its nodes' messages and absences, and returns actions. It looks up each event
// in the table of states and events (job_events.h), and hands it to the class in charge. Pure.
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
  // The job has the first node's settings and time-outs; `owner` is that node's
  // ConnectionFacts::user. `options` must outlive the job.
  Job(const MachineOptions& options, std::uint64_t number, const Join& first,
      std::optional<std::uint32_t> owner, Clock::time_point now);
  // Restores a job of an earlier rendezvous process: its nodes have restore_grace to come back.
  Job(const MachineOptions& options, std::uint64_t number, JobState state, Clock::time_point now,
      Actions& out);
  // Not copyable: the members refer to each other and to the state.
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Takes in a new agent, or one that comes back and is known (knows()). Answers Welcome or
  // Refused. Returns true if the connection now belongs to this job. For a new agent
  // takes_newcomers() must be true.
  bool join(ConnectionId connection, const ConnectionFacts& facts, const AgentEnvelope& envelope,
            const std::function<std::string()>& new_session, Clock::time_point now, Actions& out);

  // Takes a message from a connection that join() took in. Returns false if the connection was
  // closed: the peer broke the protocol, or its node is gone.
  bool message(ConnectionId connection, const AgentEnvelope& envelope, Clock::time_point now,
               Actions& out);
  void heard(ConnectionId connection, Clock::time_point now) { roster_.heard(connection, now); }
  void closed(ConnectionId connection, Clock::time_point now);
  void store_lost(ConnectionId connection, const std::string& why, Clock::time_point now,
                  Actions& out);
  void tick(Clock::time_point now, Actions& out);
  // Refuses every node; the job is empty afterwards. Called before the first round only.
  void turn_away(const Refused& refused, Actions& out);

  std::optional<Clock::time_point> next_deadline() const;

  const JobState& state() const { return state_; }
  bool ended() const { return state_.phase == JobPhase::kEnded; }
  bool takes_newcomers() const { return reaction(JobEvent::kNewcomer) != Reaction::kElsewhere; }
  bool empty() const { return state_.nodes.empty(); }
  // Returns whether the job can be dropped: it has no nodes, and expects none. A job whose first
  // nodes were unfit waits for the others, to tell them the reason.
  bool is_over() const {
    const bool waits = awaits_first_round() && !state_.excluded.empty() && state_.deadlines.join;
    return empty() && !waits;
  }
  // Returns whether `join` comes from an agent that this job has already taken in.
  bool knows(const Join& join) const { return roster_.known(join).has_value(); }
  bool awaits_first_round() const {
    return state_.phase == JobPhase::kForming && state_.round == 0;
  }
  // Tells the waiting nodes that `other` waits for nodes, too, and may be meant as this job.
  void hint_at(const Job& other, Clock::time_point now, Actions& out);
  // Return the status without its nodes, and the nodes.
  JobStatus status() const;
  std::vector<NodeStatus> node_statuses() const;
  std::size_t num_connected() const { return roster_.num_connected(); }
  // See JobTable::seconds().
  PhaseSeconds seconds(Clock::time_point now) const { return rounds_.seconds(now); }
  std::uint64_t number() const { return number_; }
  std::optional<Seat> seat(ConnectionId connection) const;
  // See JobTable::ask_for_tails().
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
  bool changed_ = true;  // possibly, since collect_changes()

  // Each class reads the whole state, and changes its own part of it. A class calls only those
  // above it. Roster keeps the nodes and sends to them. Blame and HangInquiry decide what follows
  // for the job, and Rounds does it.
  Roster roster_;
  Blame blame_;
  HangInquiry hang_;
  Rounds rounds_;
};

}  // namespace ddprun::membership
