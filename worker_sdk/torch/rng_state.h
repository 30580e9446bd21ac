// SPDX-License-Identifier: Apache-2.0
// The state of LibTorch's random generators as a tensor that a checkpoint can hold.
// docs/checkpoint.md.
#pragma once

#include <ATen/core/Tensor.h>

namespace ddprun {

// Returns a copy of the state of `device`'s default generator (dropout, torch::randn, …). It has
// bytes on the CPU, as many in each call for the same kind of device.
at::Tensor rng_state(c10::Device device);

// Sets the generator to `state`, as rng_state() gave it. Throws c10::Error for other bytes.
void set_rng_state(c10::Device device, const at::Tensor& state);

}  // namespace ddprun
