// SPDX-License-Identifier: Apache-2.0
// The part of Job about rounds that go on in place (docs/inplace.md): a worker has died, and each
// node is asked to keep those that live. When all have, the next round begins with them; when one
// hasn't, all are stopped, and the next round is one as ever.
#include <utility>

#include "rendezvous/membership/in_place.h"
#include "rendezvous/membership/job.h"

namespace ddprun::membership {

void Job::workers_kept(Node& node, int count, TimePoint now, Actions& out) {
  if (!state_.keeping) return;  // it was told otherwise meanwhile, and answers again
  node.kept = count;
  for (const auto& [id, each] : state_.nodes) {
    if (is_member(each) && each.kept == 0) return;
  }
  if (const std::string doubt = doubt_about_kept(state_); !doubt.empty()) {
    return stop_kept(doubt, now, out);
  }
  state_.keeping = false;
  state_.deadlines.stop.reset();
  name_round_failures();
  state_.ledger.stopped(now);
  tell_round_over(out);
  const std::vector<NodeId> order = members_in_order(state_);
  for (const NodeId id : order) {
    Node& member = state_.nodes.edit(id);
    member.in_place = std::exchange(member.kept, 0);
  }
  start_round(order, true, now, out);
}

// Nobody goes on in place: whoever kept workers, or may, stops them.
void Job::stop_kept(const std::string& why, TimePoint now, Actions& out) {
  if (!std::exchange(state_.keeping, false)) return;
  log(out, LogLevel::kWarning,
      concat("round ", state_.round, " can't go on in place: ", why, "; its workers are stopped"));
  await_backoff(now);
  state_.deadlines.stop = now + stop_limit();
  state_.nodes.edit_each([&](Node& node) {
    node.kept = 0;
    if (!is_member(node) || node.phase != NodePhase::kStopping) return;
    push(node, StopRound{state_.round, "it can't go on in place: " + why, {}}, out);
  });
}

}  // namespace ddprun::membership
