// SPDX-License-Identifier: Apache-2.0
// Which activations a step drops, drawn for the whole batch as one process would draw them: so a
// training that is laid out over ranks drops the same, wherever a sample or a feature lies. No
// torch header here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ddprun::train {

// What the net drops: before its first linear layer, and between the two.
inline constexpr double kDroppedFeatures = 0.25, kDroppedHidden = 0.5;

// Factors: 0 where dropped, else 1 / (1 − p). Rows are samples.
struct DropoutMasks {
  at::Tensor features;  // N × 64 × 12 × 12, before the first linear layer
  at::Tensor hidden;    // N × 128, between the linear layers
};

// Those of samples first, first + stride, … of a batch of `num_samples`; on the CPU. The same as
// torch::dropout's, called once for each of the two after torch::manual_seed(seed).
DropoutMasks draw_dropout_masks(std::uint64_t seed, std::int64_t num_samples, std::int64_t first,
                                std::int64_t stride);

}  // namespace ddprun::train
