// SPDX-License-Identifier: Apache-2.0
// The part of Job about ranks that hang or lag: asks all nodes, compares, tells, acts.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/duration.h"
#include "common/log_level.h"
#include "common/text.h"
#include "rendezvous/membership/hang_verdict.h"
#include "rendezvous/membership/job.h"

namespace ddprun::membership {
namespace {

// No worker of it runs: nothing of this node can hang.
bool has_finished(const Node& node) {
  return node.gone || node.emptied || node.phase == NodePhase::kIdle ||
         node.phase == NodePhase::kSucceeded;
}

struct TimedRank {
  int node_rank = 0;
  std::string host;
  RankStepTime time;
};

constexpr std::size_t kMaxNamed = 16;
constexpr int kFactor = 2;  // × the median
constexpr std::chrono::microseconds kLeastExcess{1'000};

// Those whose own part of a step takes much longer than the others', slowest first, at most 16. A
// text is "rank 3 (node 1, gpu02): 41.0 ms of its own per step, the median of 8 ranks is 12.0 ms".
std::vector<std::string> stragglers(std::vector<TimedRank> ranks) {
  std::vector<std::string> named;
  if (ranks.size() < 2) return named;
  std::sort(ranks.begin(), ranks.end(),
            [](const TimedRank& a, const TimedRank& b) { return a.time.own > b.time.own; });
  const auto median = ranks[ranks.size() / 2].time.own;  // of an even number: the lower
  for (const TimedRank& rank : ranks) {
    if (rank.time.own <= median * kFactor || rank.time.own < median + kLeastExcess) break;
    if (named.size() == kMaxNamed) break;
    named.push_back(concat("rank ", rank.time.global_rank, " (node ", rank.node_rank, ", ",
                           rank.host, "): ", milliseconds_text(rank.time.own),
                           " of its own per step, the median of ", ranks.size(), " ranks is ",
                           milliseconds_text(median)));
  }
  return named;
}

}  // namespace

void Job::handle(Node& node, const Stalled& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (state_.settings.hang_action == HangAction::kOff) return;
  if (!hang_.wants_inquiry(now)) return;
  log(out, LogLevel::kInfo,
      concat(describe(node), " says: rank ", message.report.global_rank, " made no progress for ",
             message.report.quiet.count(), " ms (limit ", message.report.limit.count(),
             " ms, phase ", message.report.phase, "), in ", place_of(message.report)));
  inquire(now, out);
}

void Job::inquire(TimePoint now, Actions& out) {
  hang_.begin(now);
  state_.inquiries = hang_.number();
  for (const auto& [id, node] : state_.nodes) {
    if (!is_member(node) || has_finished(node)) continue;
    push(state_.nodes.edit(id), membership::Inspect{state_.round, hang_.number()}, out);
    hang_.asked(id);
  }
}

void Job::handle(Node& node, const Inspection& message, TimePoint now, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (hang_.answered(node.id, message.inquiry, message.ranks)) conclude_inquiry(now, out);
}

void Job::hang_deadline(TimePoint now, Actions& out) {
  if (state_.phase != JobPhase::kRunning) {
    hang_.reset();
  } else if (hang_.open()) {
    conclude_inquiry(now, out);
  } else {
    inquire(now, out);
  }
}

void Job::conclude_inquiry(TimePoint now, Actions& out) {
  Inspected inspected;
  std::vector<NodeId> owners;  // of inspected.ranks
  // A node whose workers have finished since it was asked has nothing to do with it any more.
  const auto lives = [this](NodeId id) {
    const auto found = state_.nodes.find(id);
    return found != state_.nodes.end() && !has_finished(found->second);
  };
  for (auto& [id, ranks] : hang_.take_answers()) {
    if (!lives(id)) continue;
    const Node& node = state_.nodes.at(id);
    // If all workers of a node ran, those that it doesn't report have ended well.
    const int unreported = num_workers(node) - static_cast<int>(ranks.size());
    if (node.phase == NodePhase::kRunning && ranks.size() < kMaxReportedRanks) {
      inspected.num_finished += std::max(0, unreported);
    }
    for (RankReport& report : ranks) {
      inspected.ranks.push_back({node.node_rank.value_or(-1), node.join.host, std::move(report)});
      owners.push_back(id);
    }
  }
  for (const NodeId id : hang_.missing()) {
    if (lives(id)) inspected.silent_nodes.push_back(describe(state_.nodes.at(id)));
  }
  for (const auto& [id, node] : state_.nodes) {
    if (is_member(node) && has_finished(node)) inspected.num_finished += num_workers(node);
  }
  if (!state_.ledger.rounds().empty())
    inspected.world_size = state_.ledger.rounds().back().world_size;
  const HangFinding finding = compare_ranks(inspected);
  const bool acts = acts_upon(finding, inspected, state_.settings.hang_action);
  hang_.finished(finding.again_in, now);
  const bool is_hang = finding.kind != HangKind::kNoHang;
  using Telling = HangWatch::Telling;
  Telling telling = Telling::kNothing;
  if (is_hang) {
    const int rank = finding.outlier ? inspected.ranks[*finding.outlier].report.global_rank : -1;
    telling = hang_.how_to_tell(finding.kind, rank, finding.quiet, now);
    if (acts && telling == Telling::kNothing) telling = Telling::kOneLine;
  }
  log(out, telling != Telling::kNothing ? LogLevel::kWarning : LogLevel::kInfo, finding.text);
  for (const std::string& line : finding.lines) log(out, LogLevel::kInfo, line);
  if (!is_hang) return;
  state_.last_hang = HangStatus{state_.round, finding.text, finding.lines, acts};
  HangVerdict verdict{state_.round, finding.text, finding.lines};
  if (telling == Telling::kOneLine) {
    verdict.text = "still: " + verdict.text;
    verdict.lines.clear();
  }
  const HangAction action = state_.settings.hang_action;
  const bool may_act = action == HangAction::kDefault || action == HangAction::kRestart;
  if (finding.acted_upon_at.count() > 0 && may_act) {
    verdict.text +=
        concat(" (the round ends when it lasts for ", finding.acted_upon_at.count() / 1000, " s)");
  } else if (finding.kind == HangKind::kHung && !acts) {
    switch (state_.settings.hang_action) {
      case HangAction::kDefault:
        verdict.text += " (not restarted: it writes no progress page; see --hang-action=restart)";
        break;
      case HangAction::kRestart:
        verdict.text += " (not restarted yet: not every rank is known to be blocked for its limit)";
        break;
      case HangAction::kReport:
      case HangAction::kOff:
        verdict.text += " (not restarted: --hang-action=report)";
        break;
    }
  }
  for (const auto& [id, node] : state_.nodes) {
    if (!is_member(node) || telling == Telling::kNothing) continue;
    push(state_.nodes.edit(id), verdict, out);
  }
  if (!acts) return;
  Node* owner = finding.outlier ? &state_.nodes.edit(owners[*finding.outlier]) : nullptr;
  unnoticed_ = finding.quiet;
  round_failed(owner, hung_failure(finding, inspected), now, out);
  unnoticed_ = {};
}

void Job::handle(Node& node, const RecordsWanted& message, TimePoint, Actions& out) {
  if (!is_current(node, message.round) || state_.phase != JobPhase::kRunning) return;
  if (std::exchange(recorded_round_, state_.round) == state_.round) return;
  for (const auto& [id, each] : state_.nodes) {
    if (!is_member(each) || has_finished(each)) continue;
    push(state_.nodes.edit(id), membership::Record{state_.round}, out);
  }
}

void Job::handle(Node& node, const StepTimes& message, TimePoint now, Actions&) {
  if (message.monitor) node.monitor = SeenNodeReport{*message.monitor, now};
  if (!is_current(node, message.round)) return;
  if (!message.ranks.empty()) node.step_times = message.ranks;
  if (message.training) node.training = message.training;
}

std::optional<TrainingStatus> Job::training() const {
  std::optional<TrainingStatus> all;
  for (const auto& [id, node] : state_.nodes) {
    if (!is_member(node) || !node.training) continue;
    const TrainingStatus& each = *node.training;
    if (!all) {
      all = each;
      continue;
    }
    if (each.step < all->step) {
      all->step = each.step;
      all->phase = each.phase;
    }
    const int num_ranks = all->num_ranks + each.num_ranks;
    if (num_ranks > 0) {
      all->loss = all->loss * (1.0 * all->num_ranks / num_ranks) +
                  each.loss * (1.0 * each.num_ranks / num_ranks);
    }
    all->num_ranks = num_ranks;
    all->num_nan += each.num_nan;
    all->samples_per_second += each.samples_per_second;
    add(all->steps, each.steps);
  }
  return all;
}

std::vector<std::string> Job::find_stragglers() const {
  std::vector<TimedRank> ranks;
  for (const auto& [id, node] : state_.nodes) {
    if (!is_member(node)) continue;
    for (const RankStepTime& time : node.step_times) {
      ranks.push_back({*node.node_rank, node.join.host, time});
    }
  }
  return stragglers(std::move(ranks));
}

}  // namespace ddprun::membership
