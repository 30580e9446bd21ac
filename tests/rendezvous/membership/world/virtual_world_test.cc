// SPDX-License-Identifier: Apache-2.0
// The shipped agents and the shipped rendezvous in virtual time. Workers, agents, hosts, the
// network and the rendezvous fail at random moments. DDPRUN_SOAK=1 runs ten times as many worlds.
#include "tests/rendezvous/membership/world/virtual_world.h"

#include "bench/fleet/random.h"
#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/worlds.h"

namespace ddprun::membership::testing {
namespace {

using bench::EmulationOptions;
using bench::EmulationResult;
using ddprun::test::Contains;
using ddprun::test::kIsSanitized;
using std::chrono::milliseconds;
using BugKind = PlantedBug::Kind;

constexpr std::chrono::hours kTimeLimit{4};  // virtual time costs little

EmulationOptions storm(std::uint64_t seed) {
  EmulationOptions options;
  options.num_agents = 12;
  options.num_kills = 8;
  options.num_partitions = 12;
  options.num_slow_nodes = 3;
  options.duration = milliseconds(60'000);
  options.time_limit = options.duration + kTimeLimit;
  options.seed = seed;
  return options;
}

struct Rendezvous {
  PlantedBug bug{};
  int num_restarts = 0;  // restarts come at random moments of the storm
};

EmulationResult run(const EmulationOptions& options, const Rendezvous& rendezvous = {}) {
  const auto make_world = [&](const bench::WorldPlan& plan) {
    auto world = std::make_unique<VirtualWorld>(
        plan, VirtualWorld::Options{rendezvous.bug, rendezvous.num_restarts > 0});
    bench::Random random(~options.seed);
    for (int i = 0; i < rendezvous.num_restarts; ++i) {
      world->at(world->now() + random.between(milliseconds(0), options.duration),
                [it = world.get()] { it->restart_rendezvous(); });
    }
    return world;
  };
  return bench::Emulation(options, make_world).run();
}

std::string told(const EmulationOptions& options, const EmulationResult& result) {
  std::string text = concat("seed ", options.seed, ", ", result.seconds,
                            " s: ", result.violation.value_or("every invariant held"));
  for (const std::string& line : result.last_events) text += "\n" + line;
  return text;
}

void must_hold(const EmulationOptions& options, const EmulationResult& result) {
  if (result.violation) FAIL(told(options, result));
}

// The fault in the first seed that shows the planted bug; empty: none does.
std::string first_violation(const PlantedBug& bug, std::uint64_t num_seeds,
                            std::optional<int> max_restarts = std::nullopt) {
  for (std::uint64_t seed = 1; seed <= num_seeds; ++seed) {
    EmulationOptions options = storm(seed);
    options.max_restarts = max_restarts;
    const EmulationResult result = run(options, {bug});
    if (result.violation) return *result.violation;
  }
  return "";
}

TEST_CASE("VirtualWorld: a storm over a dozen nodes breaks no invariant", "[random]") {
  for (std::uint64_t seed = 0; seed < test::num_worlds(100); ++seed) {
    const EmulationOptions options = storm(seed);
    const EmulationResult result = run(options);
    must_hold(options, result);
    CHECK(result.num_faults >= 5);
    CHECK(result.num_rounds >= 2);
  }
}

TEST_CASE(
    "VirtualWorld: a rendezvous that is killed while workers and hosts fail breaks no "
    "invariant",
    "[random]") {
  for (std::uint64_t seed = 1000; seed < 1000 + test::num_worlds(100); ++seed) {
    EmulationOptions options = storm(seed);
    options.num_partitions = options.num_slow_nodes = 0;
    const EmulationResult result = run(options, {{}, 5});
    must_hold(options, result);
    CHECK(result.num_faults >= 3);
    CHECK(result.num_rounds >= 2);
  }
}

TEST_CASE("VirtualWorld: a storm over a thousand nodes breaks no invariant", "[random]") {
  for (std::uint64_t seed = 1; seed <= (kIsSanitized ? 1 : 2); ++seed) {
    EmulationOptions options = storm(seed);
    options.num_agents = kIsSanitized ? 100 : 1000;
    options.num_failures = 1;
    options.num_losses = 2;
    options.num_kills = 12;
    options.num_partitions = 8;
    options.num_slow_nodes = 10;
    options.duration = milliseconds(120'000);
    const EmulationResult result = run(options);
    must_hold(options, result);
    CHECK(result.num_faults > 15);
    CHECK(result.num_rounds > 6);
    CHECK(result.seconds > 120);
  }
}

TEST_CASE("VirtualWorld: the same seed is the same run, event by event", "[random]") {
  const EmulationResult first = run(storm(5), {{}, 2});
  const EmulationResult again = run(storm(5), {{}, 2});
  CHECK(first.digest == again.digest);
  CHECK(first.num_events == again.num_events);
  CHECK(first.num_events > 1000);
  CHECK(run(storm(6), {{}, 2}).digest != first.digest);
}

TEST_CASE("VirtualWorld: a spent budget ends the job, and all are told the same", "[random]") {
  EmulationOptions options = storm(3);
  SECTION("the budget of restarts") {
    options.max_restarts = 1;
    const EmulationResult result = run(options);
    must_hold(options, result);
    CHECK_THAT(result.end.value_or(""), Contains("code 1: "));
  }
  SECTION("the budget of node losses") {
    options.max_node_losses = 1;
    const EmulationResult result = run(options);
    must_hold(options, result);
    CHECK_THAT(result.end.value_or(""), Contains("code 75: "));
  }
}

TEST_CASE("VirtualWorld: each planted bug is found by its check", "[random]") {
  if (kIsSanitized) return;  // this tests the checks, which the release build runs
  const std::vector<std::pair<BugKind, const char*>> planted = {
      {BugKind::kLingering, "it starts while workers of another round live on"},
      {BugKind::kUnfenced, "it starts while workers of another round live on"},
      {BugKind::kRankTwice, "is given twice"},
      {BugKind::kRankMissing, "is given to nobody"},
      {BugKind::kNoDeadline, "the rendezvous waits without a deadline"},
      {BugKind::kNoDeadlineAgent, "waits without a deadline"},
      {BugKind::kOtherVerdict, "two ends"},
      {BugKind::kUnfoundedStop, "to which nothing has happened"},
  };
  for (const auto& [kind, says] : planted) {
    CHECK_THAT(first_violation({kind}, 40), Contains(says));
  }
  CHECK_THAT(first_violation({BugKind::kBudget}, 40, 2), Contains("allowed are 2 restarts"));
}

TEST_CASE("VirtualWorld: a stale message that is accepted is found, whatever its type",
          "[random]") {
  if (kIsSanitized) return;  // this tests the checks, which the release build runs
  for (const char* message : {"workers_running", "worker_failed", "workers_succeeded", "first_step",
                              "workers_stopped", "worker_request", "workers_left", "stalled",
                              "start_round", "stop_round", "preempt", "inspect", "hang_verdict"}) {
    INFO(message);
    CHECK_THAT(first_violation({BugKind::kStaleMessage, message}, 60),
               Contains(std::string(message) == "start_round" ? "round " : "of an old round"));
  }
}

}  // namespace
}  // namespace ddprun::membership::testing
