// SPDX-License-Identifier: Apache-2.0
// torch.autocast for C++: in its scope, operations that gain by it compute in float16 or bfloat16;
// those that need float32 keep it. docs/amp.md.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace ddprun {

// Wrap forward and loss in it, not backward. It affects this thread only. Guards nest, also on two
// devices. It keeps the copies of the weights that it makes until the outermost guard ends, so call
// no optimiser's step inside one.
class Autocast {
 public:
  // Affects operations of `device` (kCPU or kCUDA). Error(kInvalidArgument) if `dtype` is neither
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
