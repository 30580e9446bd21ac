// SPDX-License-Identifier: Apache-2.0
// The ranks' parts of the buckets when ranks divide each bucket (docs/zero.md): rank r of W has the
// r-th of W equal parts. A part may begin in the middle of a parameter. Pure: no I/O, clock or
// thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "worker_sdk/ddp/bucket_plan.h"

namespace ddprun {

// lay_out(), but each bucket divides into `num_ranks` parts, each a multiple of kGradientAlignment.
BucketLayout lay_out_for(std::span<const ParameterSpec> parameters, const BucketPlan& plan,
                         std::size_t num_ranks);

// Returns part `rank` of `num_ranks` of a bucket of such a layout.
TensorView shard_of(const TensorView& bucket, std::size_t rank, std::size_t num_ranks);

// The piece of one parameter in a rank's part of a bucket.
struct ShardPiece {
  std::size_t parameter = 0;
  std::size_t first = 0;   // its first element in the parameter, in memory order
  std::size_t count = 0;   // > 0
  std::size_t offset = 0;  // its first element in the rank's part

  friend bool operator==(const ShardPiece&, const ShardPiece&) = default;
};

// Returns the pieces of each bucket, in memory order.
std::vector<std::vector<ShardPiece>> pieces_of(std::span<const ParameterSpec> parameters,
                                               const BucketPlan& plan, const BucketLayout& layout,
                                               std::size_t rank, std::size_t num_ranks);

}  // namespace ddprun
