// SPDX-License-Identifier: Apache-2.0
// Random worlds of a pair (pair_world.h). What must hold: all that is said of a job is one line of
// decisions, whoever says it; nobody whom its job still has is refused; once all are there and hear
// each other one leads and the other one mirrors it, and every job goes on.
#include <cstdint>
#include <cstdlib>

#include "tests/rendezvous/ha/pair_world.h"
#include "tests/support/catch.h"

namespace ddprun::ha::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kWorlds = 150;  // a world takes 15 times as long
constexpr bool kIsSanitized = true;
#else
constexpr std::uint64_t kWorlds = 1'500;
constexpr bool kIsSanitized = false;
#endif

TEST_CASE("Pair: whatever happens to the two, a job goes on once, and with all", "[random]") {
  const std::uint64_t num_worlds = std::getenv("DDPRUN_SOAK") != nullptr ? 100'000 : kWorlds;
  const char* const begin = std::getenv("DDPRUN_FIRST_SEED");  // a failed world again, alone
  const std::uint64_t first = begin != nullptr ? std::strtoull(begin, nullptr, 10) : 1;
  PairWorld::Seen all;
  for (std::uint64_t seed = first; seed < first + num_worlds; ++seed) {
    PairWorld world(seed);
    if (const auto violation = world.run()) {
      FAIL("seed " << seed << ": " << *violation << "\n" << world.story());
    }
    all.take_overs += world.seen().take_overs;
    all.yields += world.seen().yields;
    all.given_up += world.seen().given_up;
    all.syncs += world.seen().syncs;
    all.wins += world.seen().wins;
    all.both_led += world.seen().both_led;
    all.no_term += world.seen().no_term;
  }
  // The worlds are not trivial ones.
  const int few = static_cast<int>(num_worlds / 40);
  CAPTURE(all.take_overs, all.yields, all.given_up, all.syncs, all.wins, all.both_led, all.no_term);
  CHECK(all.take_overs > few);
  CHECK(all.yields > few);
  CHECK(all.given_up > few);
  CHECK(all.syncs > few);
  CHECK(all.wins > few);
  CHECK(all.both_led > few);
  CHECK(all.no_term > few);
}

int num_caught(Bug bug) {
  int num = 0;
  for (std::uint64_t seed = 1; seed <= 2'000 && num < 2; ++seed) {
    num += PairWorld(seed, bug).run().has_value() ? 1 : 0;
  }
  return num;
}

TEST_CASE("Pair: mistakes in the protocol are caught", "[random]") {
  if (kIsSanitized) DDPRUN_SKIP("thousands of worlds; the release build tries them");
  CHECK(num_caught(Bug::kCopyLeads) >= 2);
  CHECK(num_caught(Bug::kGivesUpWhatItWon) >= 1);
  CHECK(num_caught(Bug::kGoesOnBesideStandby) >= 2);
  CHECK(num_caught(Bug::kSaysBeforeAck) >= 2);
}

}  // namespace
}  // namespace ddprun::ha::testing
