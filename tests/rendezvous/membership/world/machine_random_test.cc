// SPDX-License-Identifier: Apache-2.0
// The machine against random worlds. DDPRUN_SOAK=1 runs ten times as many.
#include "tests/rendezvous/membership/world/random_world.h"
#include "tests/support/catch.h"
#include "tests/support/worlds.h"

namespace ddprun::membership::testing {
namespace {

constexpr std::uint64_t kWorlds = 100'000, kRestartedWorlds = 20'000;

TEST_CASE("JobTable: random events break no invariant", "[random]") {
  const std::uint64_t num_worlds = test::num_worlds(kWorlds);
  std::uint64_t num_rounds = 0, num_ends = 0, num_tails = 0;
  for (std::uint64_t seed = 1; seed <= num_worlds; ++seed) {
    RandomWorld world(seed, {});
    const auto violation = world.run();
    if (violation) FAIL("seed " << seed << ", " << *violation);
    num_rounds += world.num_rounds();
    num_ends += world.num_ends();
    num_tails += world.num_tails();
  }
  if (test::kIsSanitized) return;  // so few worlds say nothing of the following
  // The worlds are not trivial.
  CHECK(num_rounds > num_worlds);
  CHECK(num_ends > num_worlds / 2);
  CHECK(num_tails > num_worlds / 2);
}

TEST_CASE("JobTable: restarts from the journal break no invariant", "[random]") {
  const std::uint64_t num_worlds = test::num_worlds(kRestartedWorlds);
  std::uint64_t num_rounds = 0, num_restarts = 0;
  RandomWorld::Options options;
  options.percent_of_restarts = 10;
  for (std::uint64_t seed = 1; seed <= num_worlds; ++seed) {
    // The times shrink from longer than the drawn ones to shorter ones.
    options.keep_finished = std::chrono::seconds(seed % 2 == 0 ? 0 : seed % 64);
    RandomWorld world(seed, options);
    const auto violation = world.run();
    if (violation) FAIL("seed " << seed << ", " << *violation);
    num_rounds += world.num_rounds();
    num_restarts += world.num_restarts();
  }
  CHECK(num_rounds > num_worlds);
  CHECK(num_restarts > num_worlds);
}

TEST_CASE("JobTable: a machine that accepts a stale message of any type is caught", "[random]") {
  if (test::kIsSanitized) return;  // this tests the checks, which the release build runs
  const auto type =
      GENERATE(as<std::string>(), "workers_running", "worker_failed", "workers_succeeded",
               "first_step", "workers_stopped", "worker_request", "workers_left", "stalled");
  RandomWorld::Options options;
  options.bug = {PlantedBug::Kind::kStaleMessage, type};
  int num_caught = 0;
  for (std::uint64_t seed = 1; seed <= 2000 && num_caught < 5; ++seed) {
    num_caught += RandomWorld(seed, options).run().has_value() ? 1 : 0;
  }
  INFO(type);
  CHECK(num_caught == 5);
}

}  // namespace
}  // namespace ddprun::membership::testing
