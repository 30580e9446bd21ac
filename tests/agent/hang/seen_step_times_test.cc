// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/seen_step_times.h"

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;
using namespace std::chrono_literals;

namespace {

// After so many steps of 10 ms, 4 ms of each communication, of which `exposed_ms` isn't hidden.
StepSums sums(std::uint64_t num_steps, std::uint64_t exposed_ms, std::uint64_t before_ms = 0) {
  constexpr std::uint64_t kMs = 1'000'000;
  return {.num_steps = num_steps,
          .step = num_steps * 10 * kMs,
          .communication = num_steps * 4 * kMs,
          .exposed = (before_ms + num_steps * exposed_ms) * kMs};
}

}  // namespace

TEST_CASE(
    "SeenStepTimes: the mean of 32 steps or more, the wait in collectives isn't a rank's own") {
  SeenStepTimes times(RankNumbers{4});
  CHECK_FALSE(times.look(1, sums(31, 3)));
  const auto first = times.look(1, sums(32, 3));
  REQUIRE(first);
  CHECK(first->global_rank == 5);
  CHECK(first->step == 10ms);
  CHECK(first->own == 7ms);
  CHECK(times.look(1, sums(63, 1))->own == 7ms);
  CHECK(times.look(1, sums(72, 1, 64))->own == 9ms);  // of the last 40 alone
  CHECK_FALSE(times.look(0, sums(31, 3)));
}

TEST_CASE(
    "SeenStepTimes: a rank without communication has no own part, a nonsensical one none below 0") {
  SeenStepTimes times;
  StepSums alone = sums(40, 0);
  alone.communication = 0;
  CHECK_FALSE(times.look(0, alone));
  CHECK(times.look(1, sums(40, 99))->own == 0ms);
  StepSums back = sums(80, 0);
  back.step = 0;
  CHECK(times.look(1, back)->step == 0ms);
}

TEST_CASE("SeenStepTimes: a count of steps that goes back begins anew") {
  SeenStepTimes times;
  CHECK(times.look(0, sums(40, 3)));
  StepSums most = sums(40, 3);
  most.num_steps = ~std::uint64_t{0};
  CHECK_FALSE(times.look(0, most));  // sums as before: no communication
  CHECK_FALSE(times.look(0, sums(64, 3)));
  CHECK(times.look(0, sums(96, 3))->own == 7ms);
}
