// SPDX-License-Identifier: Apache-2.0
// The phases of a job: rounds form, start, are stopped, go on in place; the job ends. And the nodes
// that go, which may end a round. Decides nothing by itself; formation.h and verdicts.h do. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/blame.h"
#include "rendezvous/membership/hang_inquiry.h"
#include "rendezvous/membership/job_events.h"
#include "rendezvous/membership/roster.h"

namespace ddprun::membership {

class Rounds {
 public:
  using TimePoint = Clock::time_point;
  using Optional = std::optional<TimePoint>;

  Rounds(const MachineOptions& options, const JobState& job, RoundState& mine, Roster& roster,
         Blame& blame, HangInquiry& hang)
      : options_(options), job_(job), mine_(mine), roster_(roster), blame_(blame), hang_(hang) {}

  // The job is new, or of an earlier rendezvous process.
  void await_nodes(TimePoint now);
  void go_on_after_restart(TimePoint now, Actions& out);

  void form_if_ready(TimePoint now, Actions& out);
  // Ends the live round if some node has joined and waits for a place (--on-join=restart).
  void restart_for_joined(TimePoint now, Actions& out);
  // The live round ends because of `failure`, which is of `node`; nullptr: of no node. It happened
  // `unnoticed` before now.
  void failed(Node* node, const WorkerFailure& failure, Clock::duration unnoticed, TimePoint now,
              Actions& out);
  void lose(NodeId id, bool by_silence, const std::string& how, TimePoint now, Actions& out);
  void deadline_over(JobEvent event, TimePoint now, Actions& out);

  // ---- messages ----
  void workers_running(Node& node, const WorkersRunning& message, TimePoint now, Actions& out);
  void worker_failed(Node& node, WorkerFailure failure, TimePoint now, Actions& out);
  void workers_succeeded(Node& node, TimePoint now, Actions& out);
  void first_step(Node& node, const FirstStep& message, TimePoint now);
  void workers_stopped(Node& node, const WorkersStopped& message, TimePoint now, Actions& out);
  void workers_left(Node& node, TimePoint now, Actions& out);
  void worker_request(Node& node, const WorkerRequest& message, TimePoint now, Actions& out);
  void warned(Node& node, const Preempted& message, TimePoint now, Actions& out);
  void leave(Node& node, const Leave& message, TimePoint now, Actions& out);

  PhaseSeconds seconds(TimePoint now) const;  // as JobTable::seconds()

 private:
  std::chrono::milliseconds last_call_time() const;  // MIN nodes are there: how long MAX is awaited
  // `order`: nodes by node rank.
  void start(const std::vector<NodeId>& order, bool in_place, TimePoint now, Actions& out);
  void record_round(const std::vector<NodeId>& order, int world_size, bool in_place, TimePoint now);
  bool all_run(TimePoint now);  // or have ended
  // If the job's end is decided, its reason is told instead.
  void stop(RoundEnd how, const std::string& reason, Clock::duration unnoticed, TimePoint now,
            Actions& out);
  void stopped_if_all(TimePoint now, Actions& out);
  void close_round(Optional next_not_before, TimePoint now);
  void workers_kept(Node& node, int count, TimePoint now, Actions& out);
  void stop_kept(const std::string& why, TimePoint now, Actions& out);
  std::string await_backoff(TimePoint now);
  void settle_join_restarts(TimePoint now);
  bool goes_on_without(const Node& node, const Leave& message) const;
  void leave_alone(Node& node, const Leave& message, const JobEnd& its_end, TimePoint now,
                   Actions& out);
  void warned_idle(Node& node, const std::string& what, TimePoint now, Actions& out);
  // A node of the live round goes, whose workers live as yet.
  void go_on_without(const std::string& what, TimePoint now, Actions& out);
  // It has been erased.
  void member_lost(const std::string& what, Clock::duration unnoticed, TimePoint now, Actions& out);
  // A member's loss came before the failure that ended the round, which is being stopped.
  void loss_was_earlier(const std::string& what, Actions& out);
  // `how` the live round ends, if there is one.
  void end(JobEnd verdict, RoundEnd how, TimePoint now, Actions& out,
           Clock::duration unnoticed = {});
  void tell_end(const JobEnd& verdict, TimePoint now, Actions& out);
  std::chrono::milliseconds stop_limit() const;
  bool is_in(JobPhase phase) const { return job_.phase == phase; }

  const MachineOptions& options_;
  const JobState& job_;
  RoundState& mine_;
  Roster& roster_;
  Blame& blame_;
  HangInquiry& hang_;
  PhaseSeconds seconds_before_;  // of an earlier process
  Optional ended_at_;
};

}  // namespace ddprun::membership
