// SPDX-License-Identifier: Apache-2.0
// Counts what ends a job's rounds, and says what follows (JobState::verdict_after_stop). It knows
// the first failures, the nodes that are kept out or warned, and what is used of each budget. Pure.
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

  // `notice_over` is the one of the job's deadlines that is set here.
  Blame(const JobState& job, BlameState& mine, std::optional<TimePoint>& notice_over,
        Roster& roster)
      : job_(job), mine_(mine), notice_over_(notice_over), roster_(roster) {}

  void round_begins(TimePoint now);

  // A worker of the live round has failed, or of the round that such a failure has ended. An
  // earlier failure than the first known one takes its place, with what follows from it.
  void note_failure(Node& node, const WorkerFailure& failure, TimePoint now, Actions& out);
  // The live round ends because of `failure`, which is of `node`; nullptr: of no node.
  void count_failure(Node* node, const WorkerFailure& failure, Actions& out);
  // The live round ends because a node is lost, or leaves and isn't needed.
  void count_loss() { ++mine_.node_losses; }
  // A node's loss came before the failure that ended the round: workers feel a peer's loss long
  // before it is known to be one. Returns what failed because of it.
  std::string loss_was_earlier(const std::string& what, Actions& out);
  // The live round ends because of `reason`, not as it should. Without a step done it counts; too
  // many of them in a row are the job's end, if nothing else is.
  void count_progress(const std::string& reason);
  void progressed() { mine_.idle_rounds = 0; }
  // The live round ended by a failure: how long the next one waits.
  std::chrono::milliseconds count_quick_failure(TimePoint now);

  // The node goes once the round is stopped. Every agent of that machine goes with it, spares, too.
  // Until then news of an earlier failure may clear it.
  void exclude(Node& node, const std::string& reason, Actions& out);
  // The node found itself unfit before it was taken in. That costs the job nothing.
  void keep_out(const Join& join, const ConnectionFacts& facts, Actions& out);

  // ---- warnings: a node is about to be taken away, or the job's time is over ----

  // All workers of the live round are asked to leave at a step boundary. `what`: the node that was
  // warned, and its reason.
  void ask_to_leave(const Preempted& message, const std::string& what, TimePoint now, Actions& out);
  // The job's time is over while workers are being stopped.
  void time_is_over(const std::string& what);
  // The live round ends while a warning is pending, because of it or not.
  RoundEnd settle_warning();
  void job_ends() { mine_.preempting.clear(); }

  void decide(std::optional<JobEnd> verdict) { mine_.verdict_after_stop = std::move(verdict); }
  void decide_if_open(const std::optional<JobEnd>& verdict) {
    if (!mine_.verdict_after_stop) mine_.verdict_after_stop = verdict;
  }
  // With the victims of the first failure. nullopt: nothing is decided.
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
