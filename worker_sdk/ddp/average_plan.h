// SPDX-License-Identifier: Apache-2.0
// How an average over the ranks is best made on a backend.
#pragma once

#include <string_view>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

struct AveragePlan {
  double factor = 1;  // each rank multiplies its share by this first; 1: no need
  ReduceOp op = ReduceOp::kAverage;
};

// NCCL makes an operator of its own for each average of floats (PreMulSum). It costs 5 us a call,
// and NVLS and the symmetric kernels don't support it. So on "nccl" a share is divided in a pass
// that is needed anyway, and then summed. Every other backend averages by itself.
inline AveragePlan average_plan(std::string_view backend, int num_ranks) {
  if (backend != "nccl") return {};
  return {.factor = 1.0 / num_ranks, .op = ReduceOp::kSum};
}

}  // namespace ddprun
