// SPDX-License-Identifier: Apache-2.0
// Shared by the autograd functions of this folder. Heavy: for their sources alone.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "common/error.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

inline void keep_group(AutogradContext* context, Communicator* group) {
  context->saved_data["group"] = reinterpret_cast<std::int64_t>(group);
}

// Called first in every backward. The graph doesn't contain collectives: a second derivative would
// lack them.
inline Communicator& kept_group(AutogradContext* context) {
  if (at::GradMode::is_enabled()) {
    throw Error(ErrorCode::kUnsupported,
                "there are no second derivatives where ranks exchange tensors: call backward() "
                "without create_graph");
  }
  return *reinterpret_cast<Communicator*>(context->saved_data["group"].toInt());
}

}  // namespace ddprun
