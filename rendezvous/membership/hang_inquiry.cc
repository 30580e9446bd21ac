// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/hang_inquiry.h"

#include <algorithm>
#include <utility>

#include "common/log_level.h"
#include "common/text.h"
#include "common/wall_time.h"

namespace ddprun::membership {
namespace {

// Adds two counts from agents, which aren't below 0 but may be any number.
int bounded_sum(int a, int b) { return a > kMaxInt - b ? kMaxInt : a + b; }

// Returns whether none of the node's workers runs, so none can hang.
bool has_finished(const Node& node) {
  return node.gone || node.emptied || node.phase == NodePhase::kIdle ||
         node.phase == NodePhase::kSucceeded;
}

struct TimedRank {
  int node_rank = 0;
  std::string host;
  RankStepTime time;
};

constexpr std::chrono::milliseconds kAnswerTime{3'000};
// After an inquiry a stalled rank begins another one only after this time.
constexpr std::chrono::milliseconds kPause{5'000};

constexpr std::size_t kMaxNamed = 16;
constexpr int kFactor = 2;  // a slow rank's own time is more than this many medians
constexpr std::chrono::microseconds kLeastExcess{1'000};

// Returns the ranks whose own part of a step takes much longer than the others', slowest first, at
// most 16. A text is "rank 3 (node 1, gpu02): 41.0 ms of its own per step, the median of 8 ranks is
// 12.0 ms".
std::vector<std::string> slow_ranks(std::vector<TimedRank> ranks) {
  std::vector<std::string> named;
  if (ranks.size() < 2) return named;
  std::ranges::sort(ranks,
                    [](const TimedRank& a, const TimedRank& b) { return a.time.own > b.time.own; });
  const auto median = ranks[ranks.size() / 2].time.own;  // the lower one of two
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

void HangInquiry::stalled(const Node& node, const Stalled& message, TimePoint now, Actions& out) {
  if (job_.settings.hang_action == HangAction::kOff || is_open()) return;
  if (now < not_before_) {
    due_ = std::min(due_.value_or(not_before_), not_before_);
    return;
  }
  log(out, job_, LogLevel::kInfo,
      concat(describe(node), " says: rank ", message.report.global_rank, " made no progress for ",
             message.report.quiet.count(), " ms (limit ", message.report.limit.count(),
             " ms, phase ", message.report.phase, "), in ", place_of(message.report)));
  inquire(now, out);
}

void HangInquiry::inquire(TimePoint now, Actions& out) {
  ++mine_.inquiries;
  answers_.clear();
  missing_.clear();
  due_.reset();
  answer_deadline_ = now + kAnswerTime;
  for (const auto& [id, node] : job_.nodes) {
    if (!is_member(node) || has_finished(node)) continue;
    roster_.push(roster_.nodes().edit(id), membership::Inspect{job_.round, job_.inquiries}, out);
    missing_.insert(id);
  }
}

std::optional<Hang> HangInquiry::answered(const Node& node, const Inspection& message,
                                          TimePoint now, Actions& out) {
  const bool is_wanted = is_open() && message.inquiry == job_.inquiries;
  if (!is_wanted || missing_.erase(node.id) == 0) return std::nullopt;
  answers_[node.id] = message.ranks;
  return missing_.empty() ? conclude(now, out) : std::nullopt;
}

std::optional<Hang> HangInquiry::look(TimePoint now, Actions& out) {
  if (is_open()) return conclude(now, out);
  inquire(now, out);
  return std::nullopt;
}

Inspected HangInquiry::take_answers(std::vector<NodeId>& owners) {
  Inspected inspected;
  // A node whose workers have finished since the question doesn't count any more.
  const auto lives = [this](NodeId id) {
    const auto found = job_.nodes.find(id);
    return found != job_.nodes.end() && !has_finished(found->second);
  };
  for (auto& [id, ranks] : answers_) {
    if (!lives(id)) continue;
    const Node& node = job_.nodes.at(id);
    // If all workers of a node ran, those that it doesn't report have ended with success.
    const int unreported = num_workers(node) - static_cast<int>(ranks.size());
    if (node.phase == NodePhase::kRunning && ranks.size() < kMaxReportedRanks) {
      inspected.num_finished += std::max(0, unreported);
    }
    for (RankReport& report : ranks) {
      inspected.ranks.push_back({node.node_rank.value_or(-1), node.join.host, std::move(report)});
      owners.push_back(id);
    }
  }
  for (const NodeId id : missing_) {
    if (lives(id)) inspected.silent_nodes.push_back(describe(job_.nodes.at(id)));
  }
  for (const auto& [id, node] : job_.nodes) {
    if (is_member(node) && has_finished(node)) inspected.num_finished += num_workers(node);
  }
  const auto& rounds = job_.ledger.rounds();
  if (!rounds.empty()) inspected.world_size = rounds.back().world_size;
  return inspected;
}

std::optional<Hang> HangInquiry::conclude(TimePoint now, Actions& out) {
  std::vector<NodeId> owners;
  const Inspected inspected = take_answers(owners);
  const HangFinding finding = compare_ranks(inspected);
  const bool acts = acts_upon(finding, inspected, job_.settings.hang_action);
  answer_deadline_.reset();
  not_before_ = now + kPause;
  if (finding.again_in) due_ = now + *finding.again_in;
  const bool is_hang = finding.kind != HangKind::kNoHang;
  Telling telling = Telling::kNothing;
  if (is_hang) {
    const int rank = finding.outlier ? inspected.ranks[*finding.outlier].report.global_rank : -1;
    telling = how_to_tell(finding.kind, rank, finding.quiet, now);
    if (acts && telling == Telling::kNothing) telling = Telling::kOneLine;
  }
  log(out, job_, telling != Telling::kNothing ? LogLevel::kWarning : LogLevel::kInfo, finding.text);
  for (const std::string& line : finding.lines) log(out, job_, LogLevel::kInfo, line);
  if (!is_hang) return std::nullopt;
  mine_.last_hang = HangStatus{job_.round, finding.text, finding.lines, acts};
  if (telling != Telling::kNothing) tell(finding, telling, acts, out);
  if (!acts) return std::nullopt;
  Node* owner = finding.outlier ? &roster_.nodes().edit(owners[*finding.outlier]) : nullptr;
  return Hang{owner, hung_failure(finding, inspected), finding.quiet};
}

HangInquiry::Telling HangInquiry::how_to_tell(HangKind kind, int global_rank, Clock::duration quiet,
                                              TimePoint now) {
  const bool is_same =
      told_ && told_->kind == kind && told_->global_rank == global_rank && now - quiet <= told_->at;
  if (is_same && quiet < 2 * told_->quiet) return Telling::kNothing;
  told_ = Told{kind, global_rank, quiet, now};
  return is_same ? Telling::kOneLine : Telling::kInFull;
}

void HangInquiry::tell(const HangFinding& finding, Telling telling, bool acts, Actions& out) {
  HangVerdict verdict{job_.round, finding.text, finding.lines};
  if (telling == Telling::kOneLine) {
    verdict.text = kStillHangs + verdict.text;
    verdict.lines.clear();
  }
  const HangAction action = job_.settings.hang_action;
  const bool may_act = action == HangAction::kDefault || action == HangAction::kRestart;
  if (finding.acted_upon_at.count() > 0 && may_act) {
    verdict.text +=
        concat(" (the round ends when it lasts for ", finding.acted_upon_at.count() / 1000, " s)");
  } else if (finding.kind == HangKind::kHung && !acts) {
    switch (action) {
      case HangAction::kDefault:
        verdict.text +=
            " (not restarted: it writes no progress page, so its hang is only reported; "
            "--hang-action=restart ends such a round)";
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
  for (const auto& [id, node] : job_.nodes) {
    if (is_member(node)) roster_.push(roster_.nodes().edit(id), verdict, out);
  }
}

void HangInquiry::reset() {
  answers_.clear();
  missing_.clear();
  answer_deadline_.reset();
  due_.reset();
  not_before_ = {};
  told_.reset();
}

void HangInquiry::records_wanted(Actions& out) {
  if (std::exchange(recorded_round_, job_.round) == job_.round) return;
  for (const auto& [id, each] : job_.nodes) {
    if (!is_member(each) || has_finished(each)) continue;
    roster_.push(roster_.nodes().edit(id), membership::Record{job_.round}, out);
  }
}

void HangInquiry::step_times(Node& node, const StepTimes& message, bool is_current, TimePoint now) {
  if (message.monitor) node.monitor = SeenNodeReport{*message.monitor, now};
  if (!is_current) return;
  if (!message.ranks.empty()) node.step_times = message.ranks;
  if (message.training) node.training = message.training;
}

std::optional<TrainingStatus> HangInquiry::training() const {
  std::optional<TrainingStatus> all;
  for (const auto& [id, node] : job_.nodes) {
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
    const int num_ranks = bounded_sum(all->num_ranks, each.num_ranks);
    if (num_ranks > 0) {
      all->loss = all->loss * (1.0 * all->num_ranks / num_ranks) +
                  each.loss * (1.0 * each.num_ranks / num_ranks);
    }
    all->num_ranks = num_ranks;
    all->num_nan = bounded_sum(all->num_nan, each.num_nan);
    all->samples_per_second += each.samples_per_second;
    add(all->steps, each.steps);
    add_framework(all->framework, each.framework);
    all->has_samples |= each.has_samples;
    all->skipped_steps = std::max(all->skipped_steps, each.skipped_steps);
    add_gpu_peak(*all, each.gpu_peak_bytes, each.gpu_peak_rank);
  }
  return all;
}

std::vector<std::string> HangInquiry::stragglers() const {
  std::vector<TimedRank> ranks;
  for (const auto& [id, node] : job_.nodes) {
    if (!is_member(node)) continue;
    for (const RankStepTime& time : node.step_times) {
      ranks.push_back({*node.node_rank, node.join.host, time});
    }
  }
  return slow_ranks(std::move(ranks));
}

}  // namespace ddprun::membership
