// SPDX-License-Identifier: Apache-2.0
// A tensor by its name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace ddprun {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace ddprun
