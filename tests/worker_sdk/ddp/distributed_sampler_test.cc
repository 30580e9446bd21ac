// SPDX-License-Identifier: Apache-2.0
// The expected values are those of torch 2.15's DistributedSampler and randperm.
#include "worker_sdk/ddp/distributed_sampler.h"

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;
using Indices = std::vector<std::int64_t>;

TEST_CASE("sampler: permutations are torch.randperm's") {
  CHECK(random_permutation(10, 7) == Indices{5, 0, 3, 4, 1, 7, 9, 6, 8, 2});
  CHECK(random_permutation(10, 5) == Indices{1, 4, 9, 6, 3, 5, 0, 2, 8, 7});
  CHECK(random_permutation(0, 5).empty());
  CHECK(random_permutation(1, 5) == Indices{0});
}

TEST_CASE("sampler: a seed counts modulo 2^32, as in torch") {
  CHECK(random_permutation(10, (std::uint64_t{1} << 32) + 5) == random_permutation(10, 5));
}

TEST_CASE("sampler: rank r takes every world-th sample from r on without shuffle") {
  const SamplerOptions in_order{.shuffle = false};
  CHECK(DistributedSampler(8, 2, 1, in_order).indices(3) == Indices{1, 3, 5, 7});
}

TEST_CASE("sampler: the tail is filled from the start, or dropped") {
  CHECK(DistributedSampler(5, 2, 1, {.shuffle = false}).indices(0) == Indices{1, 3, 0});
  const SamplerOptions drop{.shuffle = false, .drop_last = true};
  CHECK(DistributedSampler(5, 2, 1, drop).indices(0) == Indices{1, 3});
}

TEST_CASE("sampler: an uneven one shows each sample once") {
  const SamplerOptions uneven{.shuffle = false, .uneven = true};
  CHECK(DistributedSampler(5, 3, 0, uneven).indices(0) == Indices{0, 3});
  CHECK(DistributedSampler(5, 3, 1, uneven).indices(0) == Indices{1, 4});
  CHECK(DistributedSampler(5, 3, 2, uneven).indices(0) == Indices{2});
  CHECK(DistributedSampler(2, 3, 2, uneven).indices(0).empty());
  CHECK(DistributedSampler(6, 3, 2, uneven).size() == 2);
  CHECK_THROWS_AS(DistributedSampler(5, 3, 0, {.drop_last = true, .uneven = true}), Error);
}

TEST_CASE("sampler: fewer samples than ranks are repeated as often as needed") {
  CHECK(DistributedSampler(2, 7, 6, {.shuffle = false}).indices(0) == Indices{0});
  CHECK(DistributedSampler(2, 7, 5, {.shuffle = false, .drop_last = true}).indices(0).empty());
}

TEST_CASE("sampler: an empty data set has no indices") {
  CHECK(DistributedSampler(0, 3, 2).indices(0).empty());
}

TEST_CASE("sampler: a rank outside the world is refused") {
  CHECK_THROWS_AS(DistributedSampler(8, 2, 2), Error);
  CHECK_THROWS_AS(DistributedSampler(-1, 2, 0), Error);
}
