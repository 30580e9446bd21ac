// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/check.h"

namespace ddprun {

double linear_lr(double base_lr, double start_factor, double end_factor, std::uint64_t total_steps,
                 std::uint64_t step) {
  if (total_steps == 0) return base_lr * end_factor;
  const auto total = static_cast<double>(total_steps);
  const auto done = static_cast<double>(std::min(step, total_steps));
  return base_lr * (start_factor + (end_factor - start_factor) * done / total);
}

double cosine_lr(double base_lr, double min_lr, std::uint64_t total_steps, std::uint64_t step) {
  if (step >= total_steps) return min_lr;
  const double angle =
      std::numbers::pi * static_cast<double>(step) / static_cast<double>(total_steps);
  return min_lr + (base_lr - min_lr) * (1 + std::cos(angle)) / 2;
}

double step_lr(double base_lr, double gamma, std::uint64_t step_size, std::uint64_t step) {
  DDPRUN_CHECK(step_size > 0);
  return base_lr * std::pow(gamma, static_cast<double>(step / step_size));
}

double lr_at(const WarmupCosine& schedule, std::uint64_t step) {
  if (step < schedule.warmup_steps) {
    return linear_lr(schedule.base_lr, schedule.warmup_start_factor, 1, schedule.warmup_steps,
                     step);
  }
  const std::uint64_t rest =
      schedule.total_steps - std::min(schedule.warmup_steps, schedule.total_steps);
  return cosine_lr(schedule.base_lr, schedule.min_lr, rest, step - schedule.warmup_steps);
}

}  // namespace ddprun
