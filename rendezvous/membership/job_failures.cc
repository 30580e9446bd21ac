// SPDX-License-Identifier: Apache-2.0
// The part of Job about workers that fail: which failure was the first, whose it is, what follows.
#include <utility>

#include "rendezvous/membership/in_place.h"
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

void Job::handle(Node& node, const WorkerFailed& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round)) return;
  if (node.phase == NodePhase::kIdle) return;  // it already said that its workers are gone
  // News of an earlier failure than the one that ended the round may take longer to come.
  const bool is_late = state_.phase == JobPhase::kStopping && !state_.round_failures.empty();
  if (state_.phase != JobPhase::kRunning && !is_late) return;
  WorkerFailure failure = message.failure;
  failure.node_rank = *node.node_rank;
  if (failure.host.empty()) failure.host = node.join.host;
  failure.hung = false;  // that is for the comparison of all ranks to say
  if (!is_late) {
    state_.round_failures.add(node, failure, now);
    round_failed(&node, failure, now, out);
    return;
  }
  const RoundFailures::Entry before = state_.round_failures.first();
  if (state_.round_failures.add(node, failure, now)) first_failure_was_earlier(node, before, out);
}

void Job::first_failure_was_earlier(Node& node, const RoundFailures::Entry& not_first,
                                    Actions& out) {
  const WorkerFailure& failure = state_.round_failures.first().failure;
  log(out, LogLevel::kWarning,
      concat("round ", state_.round, ": the first failure was another one: ", describe(failure)));
  uncount_first_failure(not_first);
  count_first_failure(node, out);
  state_.verdict_after_stop = after_failure(state_, failure);
  if (!state_.verdict_after_stop && state_.num_stepped == 0) {
    state_.verdict_after_stop = after_idle_round(state_, describe(failure));
  }
  if (!state_.verdict_after_stop) state_.verdict_after_stop = state_.preemption_verdict;
}

// A node went before the worker did whose failure ended the round: workers feel the loss of their
// peers long before it is known to be one. What that means for the job is decided anew.
void Job::loss_was_earlier(const std::string& what, Actions& out) {
  const RoundFailures::Entry victim = state_.round_failures.first();
  log(out, LogLevel::kWarning,
      concat("round ", state_.round, ": that came first; ", describe(victim.failure),
             " because of it"));
  --state_.failures;
  uncount_first_failure(victim);
  state_.round_failures.begin(state_.round_started);
  state_.quick_failures = 0;
  state_.deadlines.backoff.reset();
  ++state_.node_losses;
  if (!state_.was_preempted) state_.round_end = RoundEnd::kNodeLost;
  state_.ledger.name_cause(concat(what, "; then ", describe(victim.failure)));
  state_.verdict_after_stop.reset();
  if (state_.num_stepped == 0) state_.verdict_after_stop = after_idle_round(state_, what);
  if (!state_.verdict_after_stop) state_.verdict_after_stop = state_.preemption_verdict;
}

void Job::round_failed(Node* node, const WorkerFailure& failure, TimePoint now, Actions& out) {
  ++state_.failures;
  if (node != nullptr) count_first_failure(*node, out);
  state_.verdict_after_stop = after_failure(state_, failure);
  count_progress(describe(failure));
  const RoundEnd how = failure.hung ? RoundEnd::kHang : RoundEnd::kWorkerFailed;
  if (state_.verdict_after_stop) {
    stop_round(how, state_.verdict_after_stop->reason, now, out);
    return;
  }
  const std::string doubt = doubt_about_failure(state_, failure);
  state_.keeping = doubt.empty();
  std::string how_on;
  if (state_.keeping) {
    how_on = " in place, if all that live can";
  } else {
    if (state_.settings.recovery == Recovery::kInPlace)
      how_on = concat(" (not in place: ", doubt, ")");
    how_on += await_backoff(now);
  }
  stop_round(how,
             concat(describe(failure), "; restart ", state_.failures, " of ",
                    state_.settings.max_restarts, how_on),
             now, out);
}

void Job::count_first_failure(Node& node, Actions& out) {
  const int count = ++state_.first_failures[node.key];
  const int limit = state_.settings.exclude_after;
  if (limit == 0 || count < limit) return;
  exclude(node, exclusion_reason(state_, count), out);
}

// The round ends because of it; then every agent of that machine goes, the spares among them, too:
// until then news of an earlier failure may clear it (uncount_first_failure).
void Job::exclude(Node& node, const std::string& reason, Actions& out) {
  const std::string key = node.key;
  state_.excluded[key] = reason;
  log(out, LogLevel::kWarning, concat(key, " is excluded: ", reason));
  for (const auto& [id, each] : state_.nodes) {
    if (each.key == key) set_excluded(state_.nodes.edit(id), true);
  }
}

// It has found itself that it is unfit, before it was taken in: that costs the job nothing.
void Job::keep_out(const Join& join, const ConnectionFacts& facts, Actions& out) {
  const std::string key = node_key(join, facts);
  state_.excluded[key] = "its preflight failed: " + join.unfit;
  log(out, LogLevel::kWarning, concat(key, " is kept out: its preflight failed: ", join.unfit));
}

// An excluded node has no worker any more.
void Job::dismiss(Node& node, Actions& out) {
  if (!node.left)
    push(node, node.preempted ? preempted(state_, node) : excluded(state_, node), out);
  erase(node.id, out);
}

void Job::uncount_first_failure(const RoundFailures::Entry& entry) {
  int& count = state_.first_failures[entry.node_key];
  const std::string because_of_it = exclusion_reason(state_, count);
  if (count > 0) --count;
  const auto reason = state_.excluded.find(entry.node_key);
  if (reason == state_.excluded.end() || reason->second != because_of_it) return;
  state_.excluded.erase(reason);
  for (const auto& [id, node] : state_.nodes) {
    if (node.key == entry.node_key && !node.preempted) {
      set_excluded(state_.nodes.edit(id), false);
    }
  }
}

// " in 2 s: …" when the next round has to wait, for the message about this one's end.
std::string Job::await_backoff(TimePoint now) {
  state_.quick_failures =
      now - state_.round_started < kCrashLoopRound ? state_.quick_failures + 1 : 0;
  const auto delay = restart_delay(state_, state_.quick_failures);
  if (delay.count() == 0) return {};
  state_.deadlines.backoff = now + delay;
  return concat(" in ", static_cast<double>(delay.count()) / 1000, " s: ", state_.quick_failures,
                " rounds in a row failed within ", kCrashLoopRound.count(), " s");
}

}  // namespace ddprun::membership
