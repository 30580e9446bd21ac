// SPDX-License-Identifier: Apache-2.0
// Half the bytes: float32 buckets travel as float16 or bfloat16.
#pragma once

#include <memory>
#include <vector>

#include "worker_sdk/ddp/comm_hook.h"

namespace ddprun {

// average = cast⁻¹(all_reduce(cast(gradient))). The host communicator sums as float32 and rounds
// once; a gradient beyond float16's ±65504 becomes infinite. PyTorch's fp16_compress_hook and
// bf16_compress_hook. Where the communicator narrows by itself only what travels is cast, a piece
// at a time, and the gradients' own memory is worked on. Buckets of other dtypes are averaged as
// they are. Memory of the CPU only.
class CastHook : public CommHook {
 public:
  // kFloat16 or kBFloat16.
  explicit CastHook(DType wire);

  void prepare(std::span<const GradBucket> buckets, Communicator& communicator) override;
  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override;

 private:
  TensorView wire_view(const GradBucket& bucket) const;

  const DType wire_;
  // By bucket; null: not cast. Empty: the communicator narrows by itself.
  std::vector<std::unique_ptr<CommBuffer>> buffers_;
};

}  // namespace ddprun
