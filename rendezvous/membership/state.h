// SPDX-License-Identifier: Apache-2.0
// What the rendezvous knows of one job, and what the journal keeps of it. Plain data; job*.cc
// change it, formation.cc and verdicts.cc only read it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/finished_job.h"
#include "rendezvous/membership/ledger.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/membership/node.h"
#include "rendezvous/membership/round_end.h"
#include "rendezvous/membership/round_failures.h"

namespace ddprun::membership {

enum class JobPhase {
  kForming,   // no live round: waiting for enough idle nodes
  kRunning,   // a round is live
  kStopping,  // the round is over, its workers are being stopped
  kEnded,     // JobEnd was sent: waiting for acknowledgements
};

// Each waiting phase has one; see docs/rendezvous.md.
struct JobDeadlines {
  using Optional = std::optional<Clock::time_point>;
  Optional join;          // kForming
  Optional last_call;     // kForming with MIN ≤ placeable < MAX
  Optional backoff;       // kStopping, kForming: a crash loop's next round waits for it
  Optional fenced;        // kForming: a silent node may still run workers before that
  Optional start;         // kRunning: some node is kStarting
  Optional barrier;       // kRunning: some node is kSucceeded
  Optional preempt;       // kRunning: a warning is pending, JobState::preempting says which
  Optional stop;          // kStopping
  Optional linger;        // kEnded
  Optional join_restart;  // kRunning: some node has joined, see Job::restart_for_joined

  std::array<Optional*, 10> all() {
    return {&join,    &last_call, &backoff, &fenced, &start,
            &barrier, &preempt,   &stop,    &linger, &join_restart};
  }
  std::array<const Optional*, 10> all() const {
    return {&join,    &last_call, &backoff, &fenced, &start,
            &barrier, &preempt,   &stop,    &linger, &join_restart};
  }
};

struct JobState {
  std::string run_id;
  JobSettings settings;
  JobTimeouts timeouts;
  JobPhase phase = JobPhase::kForming;
  JobDeadlines deadlines;
  NodeTable nodes;
  NodeId next_node_id = 1;
  std::map<int, NodeId> rank_wishes;          // --node-rank → the last node that came with it
  std::map<std::string, int> first_failures;  // how often a node was the first to fail, by node_key
  std::map<std::string, std::string> excluded;  // node_key → why it is kept out
  std::optional<JobEnd> verdict;                // set in kEnded
  // The job ends with this once the round's workers are gone everywhere: until then the round's
  // store lives, which they may need to end in order. Set in kStopping only.
  std::optional<JobEnd> verdict_after_stop;
  std::optional<Clock::time_point> began;  // nullopt: an older rendezvous took the job in
  std::optional<FinishedJob> record;       // set in kEnded, where it is kept: see FinishedJobs

  // The live or last round.
  std::uint64_t round = 0;
  Clock::time_point round_started{};
  int round_nodes = 0;                   // that it began with
  std::vector<std::string> rank_labels;  // topology labels, by node rank
  int num_stepped = 0;                   // members that said FirstStep
  std::uint64_t first_step = 0;  // the smallest that they said; 0: one of them has no number
  RoundFailures round_failures;  // empty where something else ended it
  RoundEnd round_end = RoundEnd::kOther;  // of the round that is being stopped, as far as is known
  std::string preempting;                 // why the live round is about to end; empty: it isn't
  bool time_is_over = false;              // likewise: for good
  bool was_preempted = false;             // the round that is being stopped
  bool keeping = false;                   // likewise: the next one may go on in place
  std::optional<JobEnd> preemption_verdict;  // what that means, where nothing else decides
  std::optional<HangStatus> last_hang;

  // What all rounds have cost.
  Ledger ledger;
  int failures = 0;                   // rounds that a failed worker ended
  int node_losses = 0;                // rounds that a lost or excluding node ended
  int preemptions = 0;                // rounds that a warning ended
  int idle_rounds = 0;                // in a row that ended without a finished step
  int quick_failures = 0;             // in a row that a failed worker ended soon
  int vain_join_restarts = 0;         // in a row, see Job::restart_for_joined
  int nodes_before_join_restart = 0;  // of the round that the last one ended
  std::uint64_t inquiries = 0;        // into hangs
};

inline bool is_static(const JobSettings& settings) {
  return settings.rdzv_backend == kStaticBackend;
}

const char* to_string(JobPhase phase);

}  // namespace ddprun::membership
