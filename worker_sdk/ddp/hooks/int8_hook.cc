// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/int8_hook.h"

#include <algorithm>

#include "worker_sdk/core/host/reduce_kernels.h"
#include "worker_sdk/ddp/hooks/hook_parts.h"
#include "worker_sdk/ddp/hooks/int8_codec.h"

namespace ddprun {
namespace {

using hooks::num_int8_blocks;

// Scales, then codes.
std::size_t part_bytes(const GradBucket& bucket) {
  return num_int8_blocks(bucket.view.count) * sizeof(float) + bucket.view.count;
}

}  // namespace

void Int8Hook::prepare(std::span<const GradBucket> buckets, Communicator& communicator) {
  hooks::check_on_cpu(buckets);
  hooks::allocate_gathered(buckets, part_bytes, communicator, buffers_);
}

HookStep Int8Hook::run(const GradBucket& bucket, int step, Communicator& communicator) {
  if (!buffers_[bucket.index]) return hooks::average_as_it_is(bucket, step, communicator);
  const hooks::Gathered gathered(*buffers_[bucket.index], part_bytes(bucket), communicator);
  const std::size_t num_blocks = num_int8_blocks(bucket.view.count);
  const auto scales_of = [&](int rank) { return reinterpret_cast<float*>(gathered.part(rank)); };
  const auto codes_of = [&](int rank) {
    return reinterpret_cast<std::int8_t*>(scales_of(rank) + num_blocks);
  };
  auto* const gradients = static_cast<float*>(bucket.view.data);
  const std::size_t count = bucket.view.count;
  if (step == 0) {
    const int self = communicator.rank();
    hooks::encode_int8(gradients, count, scales_of(self), codes_of(self));
    return gathered.start();
  }
  std::fill_n(gradients, count, 0.0F);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    hooks::add_int8(gradients, count, scales_of(rank), codes_of(rank));
  }
  host::reduce_kernels().divide(gradients, count, DType::kFloat32, communicator.size());
  return {};
}

}  // namespace ddprun
