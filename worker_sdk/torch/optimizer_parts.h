// SPDX-License-Identifier: Apache-2.0
// Shared by the optimisers over flat memory: the memory, a parameter's place in it, the list of
// parameters, and the rules. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
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

// Flat arrays of one dtype on one device, side by side.
struct UpdateArrays {
  const std::vector<at::Tensor>& values;
  const std::vector<at::Tensor>& gradients;
  const std::vector<at::Tensor>* states;  // one list for each of state_names()
  const std::vector<float>& steps;        // of each array: updates, this one included
  bool is_first;                          // no array has had an update before
  // One float32 on the arrays' device each; undefined: none. Only where takes_overflow().
  at::Tensor overflow{};  // 1: nothing is to be updated
  at::Tensor skipped{};   // how many of `steps` were, or are to be, left out
};

// One fused update of all arrays in place; the gradients stay.
void apply_rule(const UpdateRule& rule, const UpdateArrays& arrays);

// Whether apply_rule() leaves out an update by itself, with nobody waiting for a device.
bool takes_overflow(const UpdateRule& rule, const at::Tensor& values);

// torch.optim's names of the state that a rule keeps beside "step".
std::vector<std::string_view> state_names(const UpdateRule& rule);

// Error(kInvalidArgument) that names the option that torch.optim refuses, too.
void check_rule(const UpdateRule& rule);

}  // namespace ddprun::torch_adapter
