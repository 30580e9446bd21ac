// SPDX-License-Identifier: Apache-2.0
// Parts shared by the autograd functions of this folder. Heavy: only their sources include it.
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

// Every backward calls this first. It refuses a second derivative: the graph has no collectives for
// it.
inline Communicator& kept_group(AutogradContext* context) {
  if (at::GradMode::is_enabled()) {
    throw Error(ErrorCode::kUnsupported,
                "there are no second derivatives where ranks exchange tensors: call backward() "
                "without create_graph");
  }
  return *reinterpret_cast<Communicator*>(context->saved_data["group"].toInt());
}

}  // namespace ddprun
