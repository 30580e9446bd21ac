// SPDX-License-Identifier: Apache-2.0
// The ranks that may read a part of the parameters, step by step.
#include "worker_sdk/ddp/parameter_shard.h"

#include <random>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using ddprun::test::code_of;

using Workers = std::vector<int>;

TEST_CASE("ParameterShard: a worker goes on until it is too far ahead of the slowest") {
  std::vector<float> values(2);
  ParameterShard shard(values, 2, 2);
  const std::vector<float> update{2, 4};
  CHECK(shard.push(0, update) == Workers{0});
  CHECK(shard.push(0, update) == Workers{0});
  CHECK(shard.lead_of(0) == 2);
  CHECK(shard.push(0, update).empty());  // rank 0 is 3 steps ahead of worker 1
  CHECK(shard.slowest() == 1);
  CHECK(values == std::vector<float>{3, 6});  // all three updates have been added, each halved
  CHECK(shard.push(1, update) == Workers{0, 1});
  CHECK(shard.clock_of(0) == 3);
  CHECK(shard.lead_of(0) == 2);
}

TEST_CASE("ParameterShard: a round is added at once without staleness, by rank, for all to read") {
  std::vector<float> values{0};
  ParameterShard shard(values, 3, 0);
  const std::vector<float> large{3e8F}, minus{-3e8F}, small{3};
  CHECK(shard.push(2, small).empty());
  CHECK(shard.push(1, minus).empty());
  CHECK(values[0] == 0);
  CHECK(shard.push(0, large) == Workers{0, 1, 2});
  CHECK(values[0] == 1);  // the sum is (large + minus) + small; in another order it would be 0
}

TEST_CASE("ParameterShard: a worker that has left holds nobody up, and reads when all have") {
  std::vector<float> values(1);
  ParameterShard shard(values, 2, 0);
  const std::vector<float> update{1};
  CHECK(shard.push(0, update).empty());
  CHECK(shard.leave(1) == Workers{0});
  CHECK(values[0] == 0.5F);
  CHECK(shard.push(0, update) == Workers{0});
  CHECK(shard.leave(0) == Workers{0, 1});
  CHECK(shard.slowest() == -1);
}

TEST_CASE("ParameterShard: a push out of turn is refused") {
  std::vector<float> values(1);
  ParameterShard shard(values, 2, 0);
  const std::vector<float> update{1}, two{1, 2};
  CHECK(code_of([&] { shard.push(0, two); }) == ErrorCode::kProtocol);
  shard.push(0, update);
  CHECK(code_of([&] { shard.push(0, update); }) == ErrorCode::kProtocol);
  CHECK(code_of([&] { shard.leave(0); }) == ErrorCode::kProtocol);
}

TEST_CASE(
    "ParameterShard: any order loses nothing, lets nobody read too far ahead or wait for ever") {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const int num_workers = 1 + static_cast<int>(random() % 4);
    const std::uint64_t staleness = random() % 4;
    std::vector<float> values(1);
    ParameterShard shard(values, num_workers, staleness);
    const std::vector<float> update{static_cast<float>(num_workers)};
    std::vector<int> left(static_cast<std::size_t>(num_workers), 10), ready;
    for (int worker = 0; worker < num_workers; ++worker) ready.push_back(worker);
    int num_left = 0;
    while (!ready.empty()) {
      const std::size_t at = random() % ready.size();
      const int worker = ready[at];
      ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(at));
      const bool leaves = left[static_cast<std::size_t>(worker)]-- == 0;
      num_left += leaves;
      for (const int each : leaves ? shard.leave(worker) : shard.push(worker, update)) {
        if (left[static_cast<std::size_t>(each)] < 0) continue;
        CHECK(shard.lead_of(each) <= staleness);
        ready.push_back(each);
      }
    }
    CHECK(num_left == num_workers);
    CHECK(values[0] == 10.0F * static_cast<float>(num_workers));
  }
}
