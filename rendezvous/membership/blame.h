// SPDX-License-Identifier: Apache-2.0
// Counts the causes that end a job's rounds, and decides what follows
// (JobState::verdict_after_stop). It knows the first failures, the nodes that are kept out or
// warned, and how much of each budget is used. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/membership/roster.h"

namespace ddprun::membership {

class Blame {
 public:
  using TimePoint = Clock::time_point;

  // `notice_over` is the only one of the job's deadlines that Blame sets.
  Blame(const JobState& job, BlameState& mine, std::optional<TimePoint>& notice_over,
        Roster& roster)
      : job_(job), mine_(mine), notice_over_(notice_over), roster_(roster) {}

  void round_begins(TimePoint now);

  // Called when a worker of the live round has failed, or of a round that such a failure has ended.
  // If it failed earlier than the first known failure, it replaces that, and the verdict is decided
  // anew.
  void note_failure(Node& node, const WorkerFailure& failure, TimePoint now, Actions& out);
  // Called when the live round ends because of `failure` on `node`; nullptr: on no particular node.
  void count_failure(Node* node, const WorkerFailure& failure, Actions& out);
  // Called when the live round ends because a node is lost, or leaves and isn't needed.
  void count_loss() { ++mine_.node_losses; }
  // Called when a node's loss came before the failure that ended the round. Workers fail at a
  // peer's loss long before the loss itself is noticed. Returns that failure's description.
  std::string loss_was_earlier(const std::string& what, Actions& out);
  // Called when the live round ends early, because of `reason`. A round without a finished step is
  // counted. Too many of them in a row end the job, if no verdict is decided yet.
  void count_progress(const std::string& reason);
  void progressed() { mine_.idle_rounds = 0; }
  // Called when a failure ended the live round. Returns how long the next round waits.
  std::chrono::milliseconds count_quick_failure(TimePoint now);

  // Excludes the node: it goes once the round is stopped, with every agent of its machine, also
  // spares. Until then news of an earlier failure may revoke that.
  void exclude(Node& node, const std::string& reason, Actions& out);
  // Keeps out a node that found itself unfit before it was taken in. That uses no budget of the
  // job.
  void keep_out(const Join& join, const ConnectionFacts& facts, Actions& out);

  // ---- warnings: a node is about to be taken away, or the job's time is over ----

  // Asks all workers of the live round to leave at a step boundary. `what` names the node that was
  // warned, and the reason.
  void ask_to_leave(const Preempted& message, const std::string& what, TimePoint now, Actions& out);
  // Called when the job's time is over while workers are being stopped.
  void time_is_over(const std::string& what);
  // Called when the live round ends while a warning is pending, whatever ended it.
  RoundEnd settle_warning();
  void job_ends() { mine_.preempting.clear(); }

  void decide(std::optional<JobEnd> verdict) { mine_.verdict_after_stop = std::move(verdict); }
  void decide_if_open(const std::optional<JobEnd>& verdict) {
    if (!mine_.verdict_after_stop) mine_.verdict_after_stop = verdict;
  }
  // Returns the verdict, with the victims of the first failure. nullopt: none is decided.
  std::optional<JobEnd> take_verdict();

 private:
  void count_first_failure(Node& node, Actions& out);
  void uncount_first_failure(const RoundFailures::Entry& entry);

  const JobState& job_;
  BlameState& mine_;
  std::optional<TimePoint>& notice_over_;
  Roster& roster_;
};

}  // namespace ddprun::membership
