// SPDX-License-Identifier: Apache-2.0
// The half of Job about what its workers ask for.
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

// A node that asks to be left out is lost to the job like any other: the same budget.
void Job::handle(Node& node, const WorkerRequest& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (node.phase != NodePhase::kStarting && node.phase != NodePhase::kRunning) return;
  if (message.kind == WorkerRequest::Kind::kStopJob) {
    verdict_after_stop_ = after_stop_request(state_, node, message);
    stop_round(verdict_after_stop_->reason, now, out);
    return;
  }
  exclude(node, exclusion_reason(message), out);
  ++state_.node_losses;
  const std::string what = concat(describe(node), " is excluded: ", state_.excluded.at(node.key));
  verdict_after_stop_ = after_loss(state_, what);
  stop_round(verdict_after_stop_ ? verdict_after_stop_->reason : what, now, out);
}

}  // namespace ddprun::membership
