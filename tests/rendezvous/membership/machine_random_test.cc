// SPDX-License-Identifier: Apache-2.0
// The machine against random worlds. DDPRUN_SOAK=1 runs ten times as many.
#include <cstdlib>

#include "tests/rendezvous/membership/random_world.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

std::uint64_t num_worlds() { return std::getenv("DDPRUN_SOAK") != nullptr ? 1'000'000 : 100'000; }

TEST_CASE("JobTable: random events break no invariant", "[random]") {
  std::uint64_t num_rounds = 0, num_ends = 0;
  for (std::uint64_t seed = 1; seed <= num_worlds(); ++seed) {
    RandomWorld world(seed, {});
    const auto violation = world.run();
    if (violation) FAIL("seed " << seed << ", " << *violation);
    num_rounds += world.num_rounds();
    num_ends += world.num_ends();
  }
  // The worlds are not trivial ones.
  CHECK(num_rounds > num_worlds());
  CHECK(num_ends > num_worlds() / 2);
}

TEST_CASE("JobTable: a machine that accepts a stale round is caught", "[random]") {
  RandomWorld::Options options;
  options.plant_stale_round_bug = true;
  int num_caught = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    num_caught += RandomWorld(seed, options).run().has_value() ? 1 : 0;
  }
  CHECK(num_caught > 20);
}

}  // namespace
}  // namespace ddprun::membership::testing
