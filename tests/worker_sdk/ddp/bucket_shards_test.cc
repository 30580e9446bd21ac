// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/bucket_shards.h"

#include <cstdint>
#include <vector>

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

const std::vector<ParameterSpec> kParameters = {
    {.name = "a", .count = 100},
    {.name = "b", .count = 1},
    {.name = "c", .count = 37, .dtype = DType::kFloat64},
    {.name = "d", .count = 0}};
const BucketPlan kPlan = {{1, 0}, {2}, {3}};

}  // namespace

TEST_CASE("BucketShards: each bucket divides into aligned parts, for any number of ranks") {
  for (std::size_t num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    const BucketLayout layout = lay_out_for(kParameters, kPlan, num_ranks);
    std::size_t end = 0;
    for (std::size_t b = 0; b < kPlan.size(); ++b) {
      const BucketLayout::Bucket& bucket = layout.buckets[b];
      const std::size_t size_bytes = bucket.count * size_of(bucket.dtype);
      CHECK(bucket.offset_bytes == end);
      CHECK(size_bytes % (num_ranks * kGradientAlignment) == 0);
      for (const std::size_t index : kPlan[b]) {
        const std::size_t first = layout.slots[index].offset_bytes;
        CHECK(first >= bucket.offset_bytes);
        CHECK(first + kParameters[index].size_bytes() <= bucket.offset_bytes + size_bytes);
      }
      end += size_bytes;
    }
  }
}

TEST_CASE("BucketShards: the layout of one rank is the plain one") {
  const BucketLayout ours = lay_out_for(kParameters, kPlan, 1), plain = lay_out(kParameters, kPlan);
  for (std::size_t i = 0; i < kParameters.size(); ++i) {
    CHECK(ours.slots[i].offset_bytes == plain.slots[i].offset_bytes);
  }
}

TEST_CASE("BucketShards: the ranks' pieces are every element once, in order") {
  for (std::size_t num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    const BucketLayout layout = lay_out_for(kParameters, kPlan, num_ranks);
    std::vector<std::size_t> next(kParameters.size(), 0);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      const auto pieces = pieces_of(kParameters, kPlan, layout, rank, num_ranks);
      for (std::size_t b = 0; b < kPlan.size(); ++b) {
        const BucketLayout::Bucket& bucket = layout.buckets[b];
        const std::size_t part = bucket.count / num_ranks;
        for (const ShardPiece& piece : pieces[b]) {
          CHECK(piece.first == next[piece.parameter]);
          next[piece.parameter] += piece.count;
          CHECK(piece.offset + piece.count <= part);
          // The gradient's place in the bucket matches the piece's place in its part.
          const std::size_t slot =
              (layout.slots[piece.parameter].offset_bytes - bucket.offset_bytes) /
              size_of(bucket.dtype);
          CHECK(slot + piece.first == rank * part + piece.offset);
        }
      }
    }
    for (std::size_t i = 0; i < kParameters.size(); ++i) CHECK(next[i] == kParameters[i].count);
  }
}

TEST_CASE("BucketShards: a parameter may lie across ranks") {
  // "b" takes one line of 64 bytes, "a" seven; two ranks have four each.
  const BucketLayout layout = lay_out_for(kParameters, kPlan, 2);
  const auto first = pieces_of(kParameters, kPlan, layout, 0, 2).front();
  const auto second = pieces_of(kParameters, kPlan, layout, 1, 2).front();
  CHECK(first == std::vector<ShardPiece>{{.parameter = 1, .count = 1},
                                         {.parameter = 0, .count = 48, .offset = 16}});
  CHECK(second == std::vector<ShardPiece>{{.parameter = 0, .first = 48, .count = 52}});
}

TEST_CASE("BucketShards: a rank's part of a bucket is one of equal ones") {
  std::vector<float> memory(96);
  const TensorView bucket{.data = memory.data(), .count = 96};
  const TensorView part = shard_of(bucket, 2, 3);
  CHECK(part.data == memory.data() + 64);
  CHECK(part.count == 32);
}
