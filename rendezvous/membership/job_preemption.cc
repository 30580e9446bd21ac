// SPDX-License-Identifier: Apache-2.0
// The part of Job about warnings: a node is about to be taken away, or the job's time is over. All
// workers are asked to leave at a step boundary; then the round ends, and the job goes on without
// the nodes that were warned, or ends.
#include <algorithm>
#include <utility>

#include "common/exit_codes.h"
#include "rendezvous/membership/job.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {

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
    push(state_.nodes.edit(id), Preempt{state_.round, what, left}, out);
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

}  // namespace ddprun::membership
