// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/bucket_shards.h"

#include <algorithm>

#include "common/check.h"

namespace ddprun {

BucketLayout lay_out_for(std::span<const ParameterSpec> parameters, const BucketPlan& plan,
                         std::size_t num_ranks) {
  BucketLayout layout = lay_out(parameters, plan);
  std::size_t moved_bytes = 0;
  for (std::size_t b = 0; b < plan.size(); ++b) {
    BucketLayout::Bucket& bucket = layout.buckets[b];
    bucket.offset_bytes += moved_bytes;
    for (const std::size_t index : plan[b]) layout.slots[index].offset_bytes += moved_bytes;
    const std::size_t size_bytes = bucket.count * size_of(bucket.dtype);
    const std::size_t unit = num_ranks * kGradientAlignment;
    const std::size_t padded_bytes = (size_bytes + unit - 1) / unit * unit;
    bucket.count = padded_bytes / size_of(bucket.dtype);
    moved_bytes += padded_bytes - size_bytes;
  }
  return layout;
}

TensorView shard_of(const TensorView& bucket, std::size_t rank, std::size_t num_ranks) {
  DDPRUN_CHECK(bucket.count % num_ranks == 0);
  TensorView part = bucket;
  part.count = bucket.count / num_ranks;
  part.data = static_cast<std::byte*>(bucket.data) + rank * part.size_bytes();
  return part;
}

std::vector<std::vector<ShardPiece>> pieces_of(std::span<const ParameterSpec> parameters,
                                               const BucketPlan& plan, const BucketLayout& layout,
                                               std::size_t rank, std::size_t num_ranks) {
  std::vector<std::vector<ShardPiece>> all(plan.size());
  for (std::size_t b = 0; b < plan.size(); ++b) {
    const BucketLayout::Bucket& bucket = layout.buckets[b];
    const std::size_t part = bucket.count / num_ranks;
    const std::size_t begin = rank * part, end = begin + part;
    for (const std::size_t index : plan[b]) {
      const std::size_t slot =
          (layout.slots[index].offset_bytes - bucket.offset_bytes) / size_of(bucket.dtype);
      const std::size_t first = std::max(begin, slot);
      const std::size_t last = std::min(end, slot + parameters[index].count);
      if (first >= last) continue;
      all[b].push_back({.parameter = index,
                        .first = first - slot,
                        .count = last - first,
                        .offset = first - begin});
    }
  }
  return all;
}

}  // namespace ddprun
