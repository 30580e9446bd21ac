// SPDX-License-Identifier: Apache-2.0
// Leads a job through its phases: rounds form, start, are stopped or go on in place, and the job
// ends. It also handles nodes that go, which may end a round. The decisions are made in formation.h
// and verdicts.h. Pure.
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

  // await_nodes() begins a new job, go_on_after_restart() goes on with one of an earlier process.
  void await_nodes(TimePoint now);
  void go_on_after_restart(TimePoint now, Actions& out);

  void form_if_ready(TimePoint now, Actions& out);
  // Ends the live round if a node has joined and waits for a place (--on-join=restart).
  void restart_for_joined(TimePoint now, Actions& out);
  // Ends the live round because of `failure` on `node`; nullptr: on no particular node. The failure
  // happened `unnoticed` before now.
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

  PhaseSeconds seconds(TimePoint now) const;  // see JobTable::seconds()

 private:
  std::chrono::milliseconds last_call_time() const;  // with MIN nodes: the wait for MAX
  // `order` has the nodes by node rank.
  void start(const std::vector<NodeId>& order, bool in_place, TimePoint now, Actions& out);
  void record_round(const std::vector<NodeId>& order, int world_size, bool in_place, TimePoint now);
  bool all_run(TimePoint now);  // true also for workers that have ended
  // Stops the live round. If the job's end is decided, nodes get that reason instead of `reason`.
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
  // Called when a node of the live round goes whose workers still live.
  void go_on_without(const std::string& what, TimePoint now, Actions& out);
  // Called when a member is lost and already erased, or has stopped its workers.
  void member_lost(const std::string& what, Clock::duration unnoticed, TimePoint now, Actions& out);
  // Called when a member's loss came before the failure that ended the round. The round is being
  // stopped.
  void loss_was_earlier(const std::string& what, Actions& out);
  // Ends the job; `how` says how the live round ends, if there is one.
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
  PhaseSeconds seconds_before_;  // counted by an earlier process
  Optional ended_at_;
};

}  // namespace ddprun::membership
