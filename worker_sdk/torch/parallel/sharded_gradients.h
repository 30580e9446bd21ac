// SPDX-License-Identifier: Apache-2.0
// Gradients of a model that the ranks of a group share: the sums that are left after backward, and
// clipping by the norm of all. The table of docs/tensor-parallel.md has what each
// gradient needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/gradient_clipping.h"

namespace torch::nn {
class Module;
}

namespace ddprun {

// Sums the gradients of these parameters over the group, in place. It is for parameters that worked
// on this rank's part of a sequence, as a layer norm between sequence-parallel layers does. Call it
// once per step, after the last backward; before or after the average over data-parallel ranks. A
// parameter without a gradient counts as zeros, and gets the sum. Collective, with the same
// parameters on every rank. Error(kUnsupported): a dtype that can't be summed.
void sum_gradients(const std::vector<at::Tensor>& parameters, Communicator& group);

// The present gradients of a model, by which ranks have them.
struct GradientParts {
  std::vector<at::Tensor> sharded;     // each rank of the group has another part
  std::vector<at::Tensor> replicated;  // the same on each rank of the group
};
GradientParts gradient_parts(const torch::nn::Module& model);

// Returns the norm of all gradients as one vector, over all ranks of `group` (tensor parallel). If
// `stages` is given, its ranks, which have other layers (pipeline), count too. The result is a
// float64 on the CPU, the same on all of them. `norm_type` is > 0, or infinity (nan then counts as
// infinite); else Error(kInvalidArgument). Collective.
at::Tensor gradient_norm(const GradientParts& gradients, double norm_type, Communicator& group,
                         Communicator* stages = nullptr);

// clip_gradient_norm() with that norm: every rank scales what it has by the same number.
at::Tensor clip_gradient_norm(const GradientParts& gradients, const ClipOptions& options,
                              Communicator& group, Communicator* stages = nullptr);

}  // namespace ddprun
