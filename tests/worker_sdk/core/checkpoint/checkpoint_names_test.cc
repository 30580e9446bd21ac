// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("checkpoint names: a written name is read, and nothing else") {
  CHECK(checkpoint_name(120) == "step-000000000120.safetensors");
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{120}, ~std::uint64_t{0}}) {
    CHECK(parse_checkpoint_name(checkpoint_name(step)) == step);
    CHECK_FALSE(parse_shard_name(checkpoint_name(step)));
    const ShardPlace place{.step = step, .save = "3f9a1c22", .rank = 2, .size = 4};
    CHECK(parse_shard_name(shard_name(place)) == place);
    CHECK_FALSE(parse_checkpoint_name(shard_name(place)));
  }
  CHECK(shard_name({.step = 120, .save = "3f9a1c22", .rank = 2, .size = 4}) ==
        "step-000000000120.3f9a1c22.rank-2-of-4.safetensors");
  for (const char* name :
       {"", "step-", "step-12.safetensors", "step-000000000120.safetensors.damaged",
        "step-000000000120.safetensors.tmp-0-7", "step-+00000000120.safetensors",
        "step-000000000120.3f9a1c22.rank-4-of-4.safetensors",
        "step-000000000120.3f9a1c22.rank--1-of-4.safetensors",
        "step-000000000120.3f9a1c2.rank-2-of-4.safetensors",
        "step-000000000120.3F9A1C22.rank-2-of-4.safetensors",
        "step-000000000120.3f9a1c22.rank-02-of-4.safetensors",
        "step-99999999999999999999999.safetensors"}) {
    INFO(name);
    CHECK_FALSE(parse_checkpoint_name(name));
    CHECK_FALSE(parse_shard_name(name));
  }
}

TEST_CASE("checkpoint names: temporary names are told from others") {
  CHECK(is_temporary_name("step-000000000007.safetensors.tmp-0123456789ab"));
  CHECK(is_temporary_name("step-000000000007.safetensors.tmp-0-4711"));  // of older versions
  CHECK(is_temporary_name("step-000000000120.3f9a1c22.rank-2-of-4.safetensors.tmp-0-4711"));
  CHECK_FALSE(is_temporary_name("step-7.safetensors.tmp-0-4711"));
  CHECK_FALSE(is_temporary_name("notes.tmp-0-4711"));
  CHECK_FALSE(is_temporary_name("step-000000000007.safetensors"));
}
