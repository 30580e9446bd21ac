// SPDX-License-Identifier: Apache-2.0
// Learning rates as functions of the number of steps done, torch.optim.lr_scheduler's closed forms:
// a training that goes on from a checkpoint needs no scheduler's state.
// Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>

namespace ddprun {

// LinearLR: goes from `start_factor` × base_lr before the first step to `end_factor` × base_lr
// after `total_steps`, and stays there. 0 steps: `end_factor` × base_lr at once.
double linear_lr(double base_lr, double start_factor, double end_factor, std::uint64_t total_steps,
                 std::uint64_t step);

// CosineAnnealingLR (T_max = total_steps, eta_min = min_lr): half a cosine from base_lr down to
// min_lr. Past total_steps it stays there, where PyTorch's would rise again.
double cosine_lr(double base_lr, double min_lr, std::uint64_t total_steps, std::uint64_t step);

// StepLR: base_lr, multiplied by gamma after every `step_size` steps (> 0). ExponentialLR is that
// with a step_size of 1.
double step_lr(double base_lr, double gamma, std::uint64_t step_size, std::uint64_t step);

// The usual two in sequence: SequentialLR([LinearLR(warmup_start_factor, 1, warmup_steps),
// CosineAnnealingLR(total_steps - warmup_steps, min_lr)], milestones=[warmup_steps]).
struct WarmupCosine {
  double base_lr = 1e-3;
  double min_lr = 0;
  double warmup_start_factor = 1.0 / 3;  // LinearLR's start_factor
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 0;  // the warm-up's included
};

double lr_at(const WarmupCosine& schedule, std::uint64_t step);

}  // namespace ddprun
