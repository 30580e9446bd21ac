// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/training_report.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ddprun::agent {

std::optional<membership::TrainingStatus> TrainingReport::look(
    const std::vector<ProgressWords>& pages, Clock::time_point now) {
  if (pages.empty()) return std::nullopt;
  membership::TrainingStatus status;
  const auto& least = *std::min_element(
      pages.begin(), pages.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  status.phase = to_string(least.phase);
  status.step = least.step;
  std::uint64_t reports = 0, samples = 0;
  for (const ProgressWords& page : pages) {
    if (page.num_reports == 0) continue;
    reports += page.num_reports;
    samples += page.samples;
    const auto loss = std::bit_cast<double>(page.loss_bits);
    if (!std::isfinite(loss)) continue;
    ++status.num_ranks;
    status.loss += loss;
  }
  if (status.num_ranks > 0) status.loss /= status.num_ranks;
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
  said_at_ = now;
  said_phase_ = status.phase;
  said_step_ = status.step;
  said_reports_ = reports;
  return status;
}

}  // namespace ddprun::agent
