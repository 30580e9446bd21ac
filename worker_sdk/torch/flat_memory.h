// SPDX-License-Identifier: Apache-2.0
// What the optimisers over flat memory share: the memory, how a parameter lies in it, and which
// parameters there are. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_sdk/torch/flat_optimizer.h"

namespace ddprun::torch_adapter {

// Zeros; on the CPU in memory that may lie in huge pages, for each step goes through all of it.
at::Tensor flat_memory(std::int64_t count, const at::TensorOptions& options);

// Elements [offset, offset + count) of a flat tensor, in its memory.
at::Tensor piece_of(const at::Tensor& flat, std::size_t offset, std::int64_t count);

// The strides that a parameter keeps in flat memory: its own where they leave no gaps.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor);

struct GroupedParameter {
  NamedTensor parameter;
  std::size_t group = 0;
};

// Each once, without those of no elements. Error(kInvalidArgument): one is in two groups, two have
// one name, or an option that torch.optim refuses. Error(kUnsupported): a dtype that can't be
// averaged.
std::vector<GroupedParameter> grouped_parameters(std::vector<ParameterGroup> groups);

}  // namespace ddprun::torch_adapter
