// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/finished_job.h"

#include <algorithm>

#include "rendezvous/membership/messages.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

FinishedJob finished_job(const JobState& state, const JobEnd& verdict, Clock::time_point now) {
  FinishedJob job;
  job.run_id = state.run_id;
  job.exit_code = verdict.exit_code;
  job.reason = verdict.reason;
  if (verdict.first_failure) job.first_failure = describe(*verdict.first_failure);
  job.summary = verdict.summary;
  job.rounds = state.round;
  job.failures = state.failures;
  job.node_losses = state.node_losses;
  job.preemptions = state.preemptions;
  job.nodes = state.ledger.last_members();
  if (state.round == 0) {
    for (const auto& [id, node] : state.nodes) job.nodes.push_back(node.key);
  }
  job.num_nodes = job.nodes.size();
  job.nodes.resize(std::min(job.nodes.size(), FinishedJob::kMaxNames));
  job.began = state.began;
  job.ended = now;
  return job;
}

}  // namespace ddprun::membership
