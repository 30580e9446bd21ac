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
  const std::vector<at::Tensor>& steps;   // updates, this one included; one float32 on the device
  bool is_first;                          // no array has had an update before
};

// One fused update of all arrays in place; the gradients stay.
void apply_rule(const UpdateRule& rule, const UpdateArrays& arrays);

// torch.optim's names of the state that a rule keeps beside "step".
std::vector<std::string_view> state_names(const UpdateRule& rule);

// Error(kInvalidArgument) that names the option that torch.optim refuses, too.
void check_rule(const UpdateRule& rule);

}  // namespace ddprun
