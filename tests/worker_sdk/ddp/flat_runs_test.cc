// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/flat_runs.h"

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

constexpr std::size_t kElementBytes = 4;
constexpr std::uintptr_t kBucket = 0x10000;

// A piece of `count` floats at `offset`. Its gradient is at the same offset of bucket 0.
FlatPiece in_bucket(std::size_t offset, std::size_t count) {
  return {
      .offset = offset, .count = count, .gradient = kBucket + offset * kElementBytes, .bucket = 0};
}

std::vector<FlatRun> runs_of(const std::vector<FlatPiece>& pieces) {
  return find_runs(pieces, kElementBytes);
}

}  // namespace

TEST_CASE("flat runs: pieces whose gradients lie as they do are one run, gaps included") {
  CHECK(runs_of({in_bucket(0, 10), in_bucket(16, 16), in_bucket(32, 5)}) ==
        std::vector<FlatRun>{{.first_piece = 0, .num_pieces = 3, .offset = 0, .count = 37}});
  CHECK(runs_of({}).empty());
}

TEST_CASE("flat runs: gradients in memory of their own are never joined, however close they are") {
  std::vector<FlatPiece> pieces = {in_bucket(0, 16), in_bucket(16, 16)};
  for (FlatPiece& piece : pieces) piece.bucket = FlatPiece::kNoBucket;
  CHECK(runs_of(pieces).size() == 2);
}

TEST_CASE("flat runs: a piece without a gradient is left out and parts its neighbours") {
  std::vector<FlatPiece> pieces = {in_bucket(0, 16), in_bucket(16, 16), in_bucket(32, 16)};
  pieces[1].gradient = 0;
  CHECK(runs_of(pieces) ==
        std::vector<FlatRun>{{.first_piece = 0, .num_pieces = 1, .offset = 0, .count = 16},
                             {.first_piece = 2, .num_pieces = 1, .offset = 32, .count = 16}});
}

TEST_CASE("flat runs: another group, bucket, number of updates, gap or order begins a new run") {
  const auto num_runs_with = [](auto change) {
    std::vector<FlatPiece> pieces = {in_bucket(0, 16), in_bucket(16, 16), in_bucket(32, 16)};
    change(pieces[1]);
    return runs_of(pieces).size();
  };
  CHECK(num_runs_with([](FlatPiece&) {}) == 1);
  CHECK(num_runs_with([](FlatPiece& piece) { piece.group = 1; }) == 3);
  CHECK(num_runs_with([](FlatPiece& piece) { piece.bucket = 1; }) == 3);
  CHECK(num_runs_with([](FlatPiece& piece) { piece.num_updates = 1; }) == 3);
  CHECK(num_runs_with([](FlatPiece& piece) { piece.gradient += 64; }) == 3);
  CHECK(num_runs_with([](FlatPiece& piece) { piece.gradient = kBucket - 64; }) == 3);
}

TEST_CASE("flat runs: a gradient belongs to the bucket that holds all of it") {
  std::vector<float> first(16), second(16);
  const std::vector<TensorView> buckets = {{.data = first.data(), .count = 16},
                                           {.data = second.data(), .count = 16}};
  const auto bucket_of = [&](const float* data, std::size_t size_bytes) {
    return find_bucket(buckets, reinterpret_cast<std::uintptr_t>(data), size_bytes);
  };
  CHECK(bucket_of(first.data(), 64) == 0);
  CHECK(bucket_of(second.data() + 15, 4) == 1);
  CHECK(bucket_of(second.data() + 15, 8) == FlatPiece::kNoBucket);
  CHECK(bucket_of(first.data(), 65) == FlatPiece::kNoBucket);
  CHECK(bucket_of(nullptr, 4) == FlatPiece::kNoBucket);
}
