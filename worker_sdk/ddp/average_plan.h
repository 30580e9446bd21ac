// SPDX-License-Identifier: Apache-2.0
// How an average over the ranks is best made on a backend.
#pragma once

#include <string_view>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

struct AveragePlan {
  double factor = 1;  // what each rank multiplies its share by beforehand; 1: nothing
  ReduceOp op = ReduceOp::kAverage;
};

// NCCL makes an operator of its own of each average of floats (PreMulSum). NVLS and the symmetric
// kernels leave it out, and it costs 5 us a call. There a share is divided in a pass that it needs
// anyway, and summed. Every backend but "nccl" averages by itself.
inline AveragePlan average_plan(std::string_view backend, int num_ranks) {
  if (backend != "nccl") return {};
  return {.factor = 1.0 / num_ranks, .op = ReduceOp::kSum};
}

}  // namespace ddprun
