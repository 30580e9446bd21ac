// SPDX-License-Identifier: Apache-2.0
// What FlatOptimizer asks of a rule. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "worker_sdk/torch/update_rule.h"

namespace ddprun {

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

}  // namespace ddprun
