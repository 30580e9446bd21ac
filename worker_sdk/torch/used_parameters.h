// SPDX-License-Identifier: Apache-2.0
// The walk over the autograd graph behind a forward's outputs. Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace ddprun::torch_adapter {

// The numbers of those `accumulators` (leaves' AccumulateGrad) that no backward from `outputs` can
// reach, ascending. Undefined outputs, and those without a graph, reach nothing.
std::vector<std::size_t> unreached(const std::vector<at::Tensor>& outputs,
                                   const std::vector<torch::autograd::Node*>& accumulators);

}  // namespace ddprun::torch_adapter
