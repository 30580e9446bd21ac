// SPDX-License-Identifier: Apache-2.0
// torch.nn.utils.clip_grad_norm_ for C++.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddprun {

struct ClipOptions {
  double max_norm = 1;
  double norm_type = 2;  // p of the p-norm; infinity: the largest absolute value
  bool error_if_nonfinite = false;
};

// Returns the norm of all gradients together, as if they were one vector. If it exceeds max_norm,
// the gradients are scaled down to it, in place. FlatOptimizer::gradients() has them; any dtypes.
// After an averaged backward every rank finds the same norm. The result is one number on the first
// gradient's device; a GPU is waited for only if error_if_nonfinite is set.
// Error(kInvalidArgument), without effect: max_norm is negative or not a number; the norm is inf or
// nan and error_if_nonfinite is set.
at::Tensor clip_gradient_norm(const std::vector<at::Tensor>& gradients, const ClipOptions& options);

// Clips by a norm that the caller knows, for example over gradients that other ranks have, too.
void clip_to_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm,
                  const ClipOptions& options);

}  // namespace ddprun
