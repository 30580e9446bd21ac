// SPDX-License-Identifier: Apache-2.0
// The machine against random worlds. DDPRUN_SOAK=1 runs ten times as many.
#include <cstdlib>

#include "tests/rendezvous/membership/random_world.h"
#include "tests/support/catch.h"

namespace ddprun::membership::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kWorlds = 5'000;  // each takes eight times as long
#else
constexpr std::uint64_t kWorlds = 100'000;
#endif

std::uint64_t num_worlds() { return std::getenv("DDPRUN_SOAK") != nullptr ? 1'000'000 : kWorlds; }

TEST_CASE("JobTable: random events break no invariant", "[random]") {
  std::uint64_t num_rounds = 0, num_ends = 0, num_tails = 0;
  for (std::uint64_t seed = 1; seed <= num_worlds(); ++seed) {
    RandomWorld world(seed, {});
    const auto violation = world.run();
    if (violation) FAIL("seed " << seed << ", " << *violation);
    num_rounds += world.num_rounds();
    num_ends += world.num_ends();
    num_tails += world.num_tails();
  }
  // The worlds are not trivial ones.
  CHECK(num_rounds > num_worlds());
  CHECK(num_ends > num_worlds() / 2);
  CHECK(num_tails > num_worlds() / 2);
}

TEST_CASE("JobTable: restarts from the journal break no invariant", "[random]") {
  std::uint64_t num_rounds = 0, num_restarts = 0;
  RandomWorld::Options options;
  options.percent_of_restarts = 10;
  for (std::uint64_t seed = 1; seed <= num_worlds() / 5; ++seed) {
    // From longer than the drawn times to shorter ones.
    options.keep_finished = std::chrono::seconds(seed % 2 == 0 ? 0 : seed % 64);
    RandomWorld world(seed, options);
    const auto violation = world.run();
    if (violation) FAIL("seed " << seed << ", " << *violation);
    num_rounds += world.num_rounds();
    num_restarts += world.num_restarts();
  }
  CHECK(num_rounds > num_worlds() / 5);
  CHECK(num_restarts > num_worlds() / 5);
}

TEST_CASE("JobTable: a machine that accepts a stale message of any type is caught", "[random]") {
  const auto type =
      GENERATE(as<std::string>(), "workers_running", "worker_failed", "workers_succeeded",
               "first_step", "workers_stopped", "worker_request", "workers_left", "stalled");
  RandomWorld::Options options;
  options.accepted_when_stale = type;
  int num_caught = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    num_caught += RandomWorld(seed, options).run().has_value() ? 1 : 0;
  }
  INFO(type);
  CHECK(num_caught >= 5);
}

}  // namespace
}  // namespace ddprun::membership::testing
