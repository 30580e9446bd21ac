// SPDX-License-Identifier: Apache-2.0
// The part of Job about what ends a round: workers that fail, or ask for something, nodes that
// leave, and warnings; and about rounds that go on in place.
#include "rendezvous/membership/job.h"

#include <algorithm>
#include <utility>

#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

// ---- which failure was the first, whose it is, what follows ----

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

// A node's loss came before the failure that ended the round: workers feel a peer's loss long
// before it is known to be one. The consequences for the job are decided anew.
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
    return stop_round(how, state_.verdict_after_stop->reason, now, out);
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

// ---- steps, requests, and a node that goes without the job ----

void Job::handle(Node& node, const FirstStep& message, TimePoint now, Actions&) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning || node.stepped)
    return;
  node.stepped = true;
  state_.first_step =
      state_.num_stepped == 0 ? message.step : std::min(state_.first_step, message.step);
  state_.idle_rounds = 0;
  const std::chrono::microseconds connecting(message.connecting_us);
  state_.connecting =
      state_.num_stepped == 0 ? connecting : std::max(state_.connecting, connecting);
  if (++state_.num_stepped < num_members()) return;
  state_.ledger.first_step(state_.first_step, state_.connecting, now);
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

// A job that runs with fewer nodes, too, needs this one no more than it needs a lost one.
bool Job::goes_on_without(const Node& node, const Leave& message) const {
  const JobSettings& settings = state_.settings;
  if (message.everyone || settings.min_nodes == settings.max_nodes || serves_rendezvous(node)) {
    return false;
  }
  return nodes_left(state_) > settings.min_nodes;
}

// As a node that asks to be left out, but its agent stops its workers by itself, and they count
// until its connection ends.
void Job::leave_alone(Node& node, const Leave& message, TimePoint now, Actions& out) {
  push(node, after_leave(state_, node, message), out);
  const bool works = node.phase == NodePhase::kStarting || node.phase == NodePhase::kRunning;
  if (!works && node.phase != NodePhase::kStopping) {
    return lose(node.id, false, message.reason, now, out);
  }
  node.left = true;
  node.left_by_signal = !message.alone;
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

// ---- warnings: a node is about to be taken away, or the job's time is over ----

// All workers are asked to leave at a step boundary; then the round ends, and the job goes on
// without the nodes that were warned, or ends.

void Job::handle(Node& node, const Preempted& message, TimePoint now, Actions& out) {
  const bool live = state_.phase == JobPhase::kRunning;
  if (message.kind == Preempted::Kind::kTimeLimit) {
    if (!live) return time_is_over(concat(describe(node), " ", message.reason), now, out);
    state_.time_is_over = true;
  } else {
    if (std::exchange(node.warned, true)) return;
    if (!live || !is_member(node) || node.phase == NodePhase::kIdle) {
      return preempt_idle(node, message, now, out);
    }
  }
  // The first one's words; the shortest notice.
  const std::string what = concat(describe(node), " ", message.reason);
  if (state_.preempting.empty()) state_.preempting = what;
  log(out, LogLevel::kWarning,
      concat(what, "; workers are asked to leave within ", message.notice.count(), " ms"));
  // With a time limit each node says so, in the same moment: all are told once.
  if (state_.deadlines.preempt && now + message.notice >= *state_.deadlines.preempt) return;
  state_.deadlines.preempt = now + message.notice;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(*state_.deadlines.preempt - now);
  for (const auto& [id, member] : state_.nodes) {
    if (!is_member(member) || member.gone) continue;
    push(state_.nodes.edit(id), Preempt{state_.round, what, left, message.signal_number}, out);
  }
}

// A spare, or a node between two rounds: nobody waits for its workers.
void Job::preempt_idle(Node& node, const Preempted& message, TimePoint now, Actions& out) {
  log(out, LogLevel::kWarning, concat(describe(node), " ", message.reason));
  if (node.phase == NodePhase::kStopping) {
    node.preempted = true;  // it goes when they are stopped
    return set_excluded(node, true);
  }
  const std::string what = concat(describe(node), " ", message.reason);
  const bool is_needed = is_member(node) && state_.round > 0;
  const bool takes_rendezvous = serves_rendezvous(node);
  push(node, preempted(state_, node), out);
  erase(node.id, out);
  if (is_needed || takes_rendezvous) {
    if (auto verdict = after_preemption(state_, what, takes_rendezvous)) {
      return end(std::move(*verdict), RoundEnd::kPreempted, now, out);
    }
  }
  tell_waiting(now, out);
}

bool Job::serves_rendezvous(const Node& node) const {
  // Another node of this machine, as when one tries it out, is told apart by its process.
  const bool is_here = node.facts.peer_is_loopback || node.facts.peer_addr == node.facts.local_addr;
  return options_.embedded && is_here && node.join.pid == options_.embedding_pid;
}

void Job::time_is_over(const std::string& what, TimePoint now, Actions& out) {
  if (state_.phase == JobPhase::kForming) {
    return end(after_time_limit(state_, what), RoundEnd::kTimeLimit, now, out);
  }
  state_.preemption_verdict = after_time_limit(state_, what);
  if (!state_.verdict_after_stop) state_.verdict_after_stop = state_.preemption_verdict;
}

void Job::handle(Node& node, const WorkersLeft& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (node.phase != NodePhase::kStarting && node.phase != NodePhase::kRunning) return;
  if (state_.preempting.empty()) {  // nobody asked them to
    WorkerFailure failure;
    failure.node_rank = *node.node_rank;
    failure.host = node.join.host;
    failure.exit_code = static_cast<int>(ExitCode::kRetryable);
    state_.round_failures.add(node, failure, now);
    return round_failed(&node, failure, now, out);
  }
  node.departed = true;
  node_finished(node, now, out);
}

// The round ends while a warning is pending, because of it or not: what it means for the job.
void Job::settle_preemption() {
  ++state_.preemptions;
  state_.was_preempted = true;
  state_.round_end = state_.time_is_over ? RoundEnd::kTimeLimit : RoundEnd::kPreempted;
  bool takes_rendezvous = false;
  for (const auto& [id, each] : state_.nodes) {
    if (!each.warned || !is_member(each)) continue;
    Node& node = state_.nodes.edit(id);
    node.preempted = true;
    set_excluded(node, true);
    takes_rendezvous |= serves_rendezvous(node);
  }
  const std::string reason = std::exchange(state_.preempting, {});
  state_.deadlines.preempt.reset();
  state_.preemption_verdict = state_.time_is_over
                                  ? after_time_limit(state_, reason)
                                  : after_preemption(state_, reason, takes_rendezvous);
  if (!state_.verdict_after_stop) state_.verdict_after_stop = state_.preemption_verdict;
}

// ---- in place (docs/inplace.md) ----

// A worker has died, and each node is asked to keep those that live. When all have, the next round
// begins with them; when one hasn't, all are stopped, and the next round is one as ever.

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
