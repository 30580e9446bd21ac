// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/training_report.h"

#include <bit>
#include <cmath>

namespace ddprun::agent {

namespace {

// The mean of the steps in between. A worker may write what it likes: sums may have gone back.
membership::RankSteps mean_between(const StepSums& before, const StepSums& now, int global_rank) {
  const auto num_steps = static_cast<double>(now.num_steps - before.num_steps);
  const auto mean = [&](std::uint64_t StepSums::*sum) {
    return now.*sum > before.*sum ? static_cast<double>(now.*sum - before.*sum) / num_steps : 0;
  };
  const auto seconds = [&](std::uint64_t StepSums::*sum) { return mean(sum) / 1e9; };
  membership::RankSteps steps;
  steps.global_rank = global_rank;
  steps.step = seconds(&StepSums::step);
  steps.forward = seconds(&StepSums::forward);
  steps.backward = seconds(&StepSums::backward);
  steps.communication = seconds(&StepSums::communication);
  steps.exposed = seconds(&StepSums::exposed);
  steps.loader = seconds(&StepSums::loader);
  steps.bytes_per_step = mean(&StepSums::bytes);
  return steps;
}

}  // namespace

membership::StepSummary TrainingReport::summarize(
    const std::vector<std::optional<ProgressWords>>& pages) {
  ranks_.resize(pages.size());
  membership::StepSummary summary;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!pages[i]) continue;
    Rank& rank = ranks_[i];
    if (pages[i]->steps) {
      const StepSums& now = *pages[i]->steps;
      if (now.num_steps > rank.said.num_steps) {
        rank.steps = mean_between(rank.said, now, numbers_.of(static_cast<int>(i)));
      }
      rank.said = now;
    }
    if (rank.steps) add(summary, summary_of(*rank.steps));
  }
  return summary;
}

std::optional<membership::TrainingStatus> TrainingReport::look(
    const std::vector<std::optional<ProgressWords>>& pages, Clock::time_point now) {
  membership::TrainingStatus status;
  const ProgressWords* least = nullptr;
  std::uint64_t reports = 0, samples = 0;
  for (const auto& page : pages) {
    if (!page) continue;
    if (least == nullptr || page->step < least->step) least = &*page;
    if (page->num_reports == 0) continue;
    reports += page->num_reports;
    samples += page->samples;
    const auto loss = std::bit_cast<double>(page->loss_bits);
    if (!std::isfinite(loss)) {
      ++status.num_nan;
      continue;
    }
    // A sum of what is finite may not be.
    const double num_ranks = ++status.num_ranks;
    status.loss = status.loss * ((num_ranks - 1) / num_ranks) + loss / num_ranks;
  }
  if (least == nullptr) return std::nullopt;
  status.phase = to_string(least->phase);
  status.step = least->step;
  if (reports > 0 && !counted_at_) {
    counted_at_ = now;
    counted_ = samples;
  }
  const bool changed = status.step > 0 && (status.phase != said_phase_ ||
                                           status.step != said_step_ || reports != said_reports_);
  if (!changed || (said_at_ && now < *said_at_ + kInterval)) return std::nullopt;
  if (counted_at_ && now > *counted_at_) {
    const double seconds = std::chrono::duration<double>(now - *counted_at_).count();
    rate_ = samples > counted_ ? static_cast<double>(samples - counted_) / seconds : 0;
    counted_at_ = now;
    counted_ = samples;
  }
  status.samples_per_second = rate_;
  status.steps = summarize(pages);
  said_at_ = now;
  said_phase_ = status.phase;
  said_step_ = status.step;
  said_reports_ = reports;
  return status;
}

}  // namespace ddprun::agent
