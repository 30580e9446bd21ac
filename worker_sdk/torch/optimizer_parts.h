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

// Returns zeros. On the CPU their memory may be in huge pages, for each step goes through all of
// it.
at::Tensor flat_memory(std::int64_t count, const at::TensorOptions& options);

// Returns elements [offset, offset + count) of a flat tensor, in its memory.
at::Tensor piece_of(const at::Tensor& flat, std::size_t offset, std::int64_t count);

// Returns the strides that a parameter keeps in flat memory: its own if they leave no gaps.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor);

struct GroupedParameter {
  NamedTensor parameter;
  std::size_t group = 0;
};

// Returns each parameter once, without those of no elements. Error(kInvalidArgument): one is in two
// groups, two have one name, or an option that torch.optim refuses. Error(kUnsupported): a dtype
// that can't be averaged.
std::vector<GroupedParameter> grouped_parameters(std::vector<ParameterGroup> groups);

// Flat arrays of one dtype on one device, side by side.
struct UpdateArrays {
  const std::vector<at::Tensor>& values;
  const std::vector<at::Tensor>& gradients;
  const std::vector<at::Tensor>* states;  // one list for each of state_names()
  const std::vector<float>& steps;        // by array: number of updates, this one included
  bool is_first;                          // no array has had an update before
  // Each is one float32 on the arrays' device; undefined: none. Only with takes_overflow().
  at::Tensor overflow{};  // 1: nothing is updated
  at::Tensor skipped{};   // how many of `steps` were, or will be, left out
};

// Updates all arrays in place in one fused call. It doesn't change the gradients.
void apply_rule(const UpdateRule& rule, const UpdateArrays& arrays);

// Returns whether apply_rule() leaves out an update on the device, without a wait for it.
bool takes_overflow(const UpdateRule& rule, const at::Tensor& values);

// Returns torch.optim's names of the state that a rule keeps besides "step".
std::vector<std::string_view> state_names(const UpdateRule& rule);

// Throws Error(kInvalidArgument) that names the option that torch.optim refuses, too.
void check_rule(const UpdateRule& rule);

}  // namespace ddprun::torch_adapter
