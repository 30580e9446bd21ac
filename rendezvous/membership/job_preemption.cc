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
    time_is_over_ = true;
  } else {
    if (std::exchange(node.warned, true)) return;
    if (!live || !is_member(node) || node.phase == NodePhase::kIdle) {
      return preempt_idle(node, message, now, out);
    }
  }
  // The first one's words; the shortest notice.
  const std::string what = concat(describe(node), " ", message.reason);
  if (preempting_.empty()) preempting_ = what;
  log(out, LogLevel::kWarning,
      concat(what, "; workers are asked to leave within ", message.notice.count(), " ms"));
  // With a time limit each node says so, in the same moment: all are told once.
  if (preempt_deadline_ && now + message.notice >= *preempt_deadline_) return;
  preempt_deadline_ = now + message.notice;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*preempt_deadline_ - now);
  for (auto& [id, member] : state_.nodes) {
    if (is_member(member) && !member.gone) push(member, Preempt{state_.round, what, left}, out);
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
      return end(std::move(*verdict), now, out);
    }
  }
  tell_waiting(now, out);
}

bool Job::serves_rendezvous(const Node& node) const {
  return options_.embedded &&
         (node.facts.peer_is_loopback || node.facts.peer_addr == node.facts.local_addr);
}

void Job::time_is_over(const std::string& what, TimePoint now, Actions& out) {
  if (state_.phase == JobPhase::kForming) return end(after_time_limit(state_, what), now, out);
  preemption_verdict_ = after_time_limit(state_, what);
  if (!verdict_after_stop_) verdict_after_stop_ = preemption_verdict_;
}

void Job::handle(Node& node, const WorkersLeft& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (node.phase != NodePhase::kStarting && node.phase != NodePhase::kRunning) return;
  if (preempting_.empty()) {  // nobody asked them to
    WorkerFailure failure;
    failure.node_rank = *node.node_rank;
    failure.host = node.join.host;
    failure.exit_code = static_cast<int>(ExitCode::kRetryable);
    failures_.add(node, failure, now);
    return round_failed(&node, failure, now, out);
  }
  node.departed = true;
  node_finished(node, now, out);
}

// The round ends while a warning is pending, because of it or not: what it means for the job.
void Job::settle_preemption() {
  ++state_.preemptions;
  was_preempted_ = true;
  bool takes_rendezvous = false;
  for (auto& [id, node] : state_.nodes) {
    if (!node.warned || !is_member(node)) continue;
    node.preempted = true;
    set_excluded(node, true);
    takes_rendezvous |= serves_rendezvous(node);
  }
  const std::string reason = std::exchange(preempting_, {});
  preempt_deadline_.reset();
  preemption_verdict_ = time_is_over_ ? after_time_limit(state_, reason)
                                      : after_preemption(state_, reason, takes_rendezvous);
  if (!verdict_after_stop_) verdict_after_stop_ = preemption_verdict_;
}

}  // namespace ddprun::membership
