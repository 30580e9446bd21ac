// SPDX-License-Identifier: Apache-2.0
// torch.autocast for C++: in its scope operations that gain by it compute in float16 or bfloat16,
// those that need it stay in float32. docs/amp.md.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace ddprun {

// Wrap forward and loss in it, not backward. This thread only; guards nest, also on two devices.
// The copies of the weights that it makes are kept until the outermost guard ends: no optimiser's
// step inside one.
class Autocast {
 public:
  // On operations of `device` (kCPU or kCUDA). Error(kInvalidArgument) where `dtype` is neither
  // kHalf nor kBFloat16. `enabled` false: switches it off within another guard.
  Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const c10::ScalarType former_dtype_;
};

}  // namespace ddprun
