// SPDX-License-Identifier: Apache-2.0
// The part of Job about what workers say of themselves, steps and requests, and about a node that
// goes without the job.
#include <algorithm>

#include "rendezvous/membership/job.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

void Job::handle(Node& node, const FirstStep& message, TimePoint now, Actions&) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning || node.stepped)
    return;
  node.stepped = true;
  state_.first_step =
      state_.num_stepped == 0 ? message.step : std::min(state_.first_step, message.step);
  state_.idle_rounds = 0;
  if (++state_.num_stepped == num_members()) state_.ledger.first_step(state_.first_step, now);
}

// The live round ends because of `reason`, not as it should. Without a step done it counts; too
// many of them in a row are the job's end, if nothing else is.
void Job::count_progress(const std::string& reason) {
  if (state_.num_stepped > 0) return;
  ++state_.idle_rounds;
  if (!state_.verdict_after_stop) state_.verdict_after_stop = after_idle_round(state_, reason);
}

// A node that asks to be left out is lost to the job like any other: the same budget.
void Job::handle(Node& node, const WorkerRequest& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (node.phase != NodePhase::kStarting && node.phase != NodePhase::kRunning) return;
  if (message.kind == WorkerRequest::Kind::kStopJob) {
    state_.verdict_after_stop = after_stop_request(state_, node, message);
    stop_round(RoundEnd::kWorkerRequest, state_.verdict_after_stop->reason, now, out);
    return;
  }
  exclude(node, exclusion_reason(message), out);
  ++state_.node_losses;
  const std::string what = concat(describe(node), " is excluded: ", state_.excluded.at(node.key));
  state_.verdict_after_stop = after_loss(state_, what);
  count_progress(what);
  stop_round(RoundEnd::kNodeLeft,
             state_.verdict_after_stop ? state_.verdict_after_stop->reason : what, now, out);
}

// Likewise, but its agent stops its workers by itself, and they count until its connection ends.
void Job::leave_alone(Node& node, const Leave& message, TimePoint now, Actions& out) {
  push(node, after_leave(state_, node, message), out);
  const bool works = node.phase == NodePhase::kStarting || node.phase == NodePhase::kRunning;
  if (!works && node.phase != NodePhase::kStopping) {
    return lose(node.id, false, message.reason, now, out);
  }
  node.left = true;
  set_excluded(node, true);
  if (state_.phase != JobPhase::kRunning) return;
  ++state_.node_losses;
  const std::string what = concat(describe(node), " left: ", message.reason);
  log(out, LogLevel::kWarning, what);
  state_.verdict_after_stop = after_loss(state_, what);
  count_progress(what);
  stop_round(RoundEnd::kNodeLeft,
             state_.verdict_after_stop ? state_.verdict_after_stop->reason : what, now, out);
}

}  // namespace ddprun::membership
