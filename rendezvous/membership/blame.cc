// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/blame.h"

#include <algorithm>

#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {
namespace {

constexpr std::size_t kMostExcluded = 1024;
constexpr char kUnfit[] = "its preflight failed: ";

}  // namespace

void Blame::round_begins(TimePoint now) {
  mine_.round_failures.begin(now);
  mine_.was_preempted = false;
  mine_.preemption_verdict.reset();
}

void Blame::note_failure(Node& node, const WorkerFailure& failure, TimePoint now, Actions& out) {
  if (job_.phase == JobPhase::kRunning) {
    mine_.round_failures.add(node, failure, now);
    return;
  }
  const RoundFailures::Entry before = mine_.round_failures.first();
  if (!mine_.round_failures.add(node, failure, now)) return;
  const std::string what = describe(failure);
  log(out, job_, LogLevel::kWarning,
      concat("round ", job_.round, ": the first failure was another one: ", what));
  uncount_first_failure(before);
  count_first_failure(node, out);
  decide(after_failure(job_, failure));
  if (job_.num_stepped == 0) decide_if_open(after_idle_round(job_, what));
  decide_if_open(job_.preemption_verdict);
}

std::string Blame::loss_was_earlier(const std::string& what, Actions& out) {
  const RoundFailures::Entry victim = mine_.round_failures.first();
  log(out, job_, LogLevel::kWarning,
      concat("round ", job_.round, ": that came first; ", describe(victim.failure),
             " because of it"));
  --mine_.failures;
  uncount_first_failure(victim);
  mine_.round_failures.begin(job_.round_started);
  mine_.quick_failures = 0;
  count_loss();
  decide(std::nullopt);
  if (job_.num_stepped == 0) decide(after_idle_round(job_, what));
  decide_if_open(job_.preemption_verdict);
  return describe(victim.failure);
}

void Blame::count_failure(Node* node, const WorkerFailure& failure, Actions& out) {
  ++mine_.failures;
  if (node != nullptr) count_first_failure(*node, out);
  decide(after_failure(job_, failure));
  count_progress(describe(failure));
}

void Blame::count_progress(const std::string& reason) {
  if (job_.num_stepped > 0) return;
  ++mine_.idle_rounds;
  decide_if_open(after_idle_round(job_, reason));
}

std::chrono::milliseconds Blame::count_quick_failure(TimePoint now) {
  const bool is_quick = now - job_.round_started < kCrashLoopRound;
  mine_.quick_failures = is_quick ? mine_.quick_failures + 1 : 0;
  return restart_delay(job_, mine_.quick_failures);
}

void Blame::count_first_failure(Node& node, Actions& out) {
  const int count = ++mine_.first_failures[node.key];
  const int limit = job_.settings.exclude_after;
  if (limit == 0 || count < limit) return;
  exclude(node, exclusion_reason(job_, count), out);
}

void Blame::uncount_first_failure(const RoundFailures::Entry& entry) {
  int& count = mine_.first_failures[entry.node_key];
  const std::string because_of_it = exclusion_reason(job_, count);
  if (count > 0) --count;
  const auto reason = mine_.excluded.find(entry.node_key);
  if (reason == mine_.excluded.end() || reason->second != because_of_it) return;
  mine_.excluded.erase(reason);
  for (const auto& [id, node] : job_.nodes) {
    if (node.key == entry.node_key && !node.preempted) {
      roster_.set_excluded(roster_.nodes().edit(id), false);
    }
  }
}

void Blame::exclude(Node& node, const std::string& reason, Actions& out) {
  const std::string key = node.key;
  mine_.excluded[key] = reason;
  log(out, job_, LogLevel::kWarning, concat(key, " is excluded: ", reason));
  for (const auto& [id, each] : job_.nodes) {
    if (each.key == key) roster_.set_excluded(roster_.nodes().edit(id), true);
  }
}

void Blame::keep_out(const Join& join, const ConnectionFacts& facts, Actions& out) {
  const std::string key = node_key(join, facts);
  // A client may come under more and more names, so their number is limited. A forgotten node
  // reports its preflight again when it comes back.
  if (mine_.excluded.size() >= kMostExcluded && !mine_.excluded.contains(key)) {
    const auto forgotten = std::ranges::find_if(
        mine_.excluded, [](const auto& each) { return each.second.starts_with(kUnfit); });
    if (forgotten != mine_.excluded.end()) mine_.excluded.erase(forgotten);
  }
  mine_.excluded[key] = kUnfit + join.unfit;
  log(out, job_, LogLevel::kWarning, concat(key, " is kept out: ", mine_.excluded[key]), true);
}

// ---- warnings ----

void Blame::ask_to_leave(const Preempted& message, const std::string& what, TimePoint now,
                         Actions& out) {
  if (message.kind == Preempted::Kind::kTimeLimit) mine_.time_is_over = true;
  // The first warning's text counts, but the shortest notice.
  if (mine_.preempting.empty()) mine_.preempting = what;
  log(out, job_, LogLevel::kWarning,
      concat(what, "; workers are asked to leave within ", message.notice.count(), " ms"));
  // At a time limit every node sends a warning at the same moment, but workers are asked only once.
  if (notice_over_ && now + message.notice >= *notice_over_) return;
  notice_over_ = now + message.notice;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*notice_over_ - now);
  for (const auto& [id, member] : job_.nodes) {
    if (!is_member(member) || member.gone) continue;
    roster_.push(roster_.nodes().edit(id), Preempt{job_.round, what, left, message.signal_number},
                 out);
  }
}

void Blame::time_is_over(const std::string& what) {
  mine_.preemption_verdict = after_time_limit(job_, what);
  decide_if_open(mine_.preemption_verdict);
}

RoundEnd Blame::settle_warning() {
  ++mine_.preemptions;
  mine_.was_preempted = true;
  bool takes_rendezvous = false;
  for (const auto& [id, each] : job_.nodes) {
    if (!each.warned || !is_member(each)) continue;
    Node& node = roster_.nodes().edit(id);
    node.preempted = true;
    roster_.set_excluded(node, true);
    takes_rendezvous |= roster_.serves_rendezvous(node);
  }
  const std::string reason = std::exchange(mine_.preempting, {});
  notice_over_.reset();
  mine_.preemption_verdict = mine_.time_is_over ? after_time_limit(job_, reason)
                                                : after_preemption(job_, reason, takes_rendezvous);
  decide_if_open(mine_.preemption_verdict);
  return mine_.time_is_over ? RoundEnd::kTimeLimit : RoundEnd::kPreempted;
}

std::optional<JobEnd> Blame::take_verdict() {
  auto verdict = std::exchange(mine_.verdict_after_stop, std::nullopt);
  if (verdict && !mine_.round_failures.empty()) verdict->victims = mine_.round_failures.victims();
  return verdict;
}

}  // namespace ddprun::membership
