// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/lr_schedule.h"

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("lr schedule: a cosine ends at its least rate and stays there") {
  CHECK(cosine_lr(0.1, 0.01, 100, 0) == 0.1);
  CHECK(cosine_lr(0.1, 0.01, 100, 100) == 0.01);
  CHECK(cosine_lr(0.1, 0.01, 100, 150) == 0.01);
  CHECK(cosine_lr(0.1, 0.01, 0, 0) == 0.01);
}

TEST_CASE("lr schedule: a warm-up of no steps is none, one longer than all is cut") {
  CHECK(linear_lr(0.5, 0.1, 1, 0, 0) == 0.5);
  CHECK(lr_at({.base_lr = 0.5, .total_steps = 10}, 0) == 0.5);
  const WarmupCosine endless{.base_lr = 0.5, .warmup_steps = 20, .total_steps = 10};
  CHECK(lr_at(endless, 10) < 0.5);
  CHECK(lr_at(endless, 20) == 0);
}

TEST_CASE("lr schedule: step counts beyond 32 bits don't wrap") {
  CHECK(step_lr(1, 0.5, std::uint64_t{1} << 40, (std::uint64_t{1} << 40) - 1) == 1);
  CHECK(step_lr(1, 0.5, std::uint64_t{1} << 40, std::uint64_t{1} << 40) == 0.5);
}
