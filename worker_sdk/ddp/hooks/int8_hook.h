// SPDX-License-Identifier: Apache-2.0
// A quarter of the bytes: float32 buckets travel as 8 bit integers, each block of 256 with a scale.
#pragma once

#include <memory>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"

namespace ddprun {

// Sums of different scales are no 8 bit integers, so all ranks' codes are gathered and each rank
// adds them up: average = Σ scale · code / world size, in float32, in the order of the ranks. A
// rank receives 1.016 bytes per element from each other one; a float32 all-reduce is about 8 in
// all. Non-finite gradients make their block's average NaN. Buckets of other dtypes are averaged as
// they are. Memory of the CPU only.
class Int8Hook : public CommHook {
 public:
  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override;
  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override;

 private:
  std::vector<std::unique_ptr<CommBuffer>> buffers_;  // by bucket: all ranks' parts
};

}  // namespace ddprun
