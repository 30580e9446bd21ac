// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/daemon_status.h"

#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using membership::PhaseSeconds;

TEST_CASE("Fleet seconds: work that is done again is in running, and named beside it") {
  FleetSeconds fleet;
  const PhaseSeconds shown = fleet.show(PhaseSeconds{.running = 7, .redone = 3});
  CHECK(shown.running == 10);
  CHECK(shown.redone == 3);
}

TEST_CASE("Fleet seconds: a counter never goes back, and the sum catches up") {
  FleetSeconds fleet;
  fleet.show(PhaseSeconds{.running = 100});
  CHECK(fleet.show(PhaseSeconds{.running = 60, .detect = 40}).running == 100);
  CHECK(fleet.shown().detect == 40);
  CHECK(fleet.show(PhaseSeconds{.running = 120, .detect = 40}).running == 120);
}

TEST_CASE("Fleet seconds: a rendezvous that leads again counts on") {
  FleetSeconds fleet;
  fleet.begin();
  fleet.show(PhaseSeconds{.spawn = 2});
  fleet.begin();
  CHECK(fleet.show(PhaseSeconds{}).spawn == 2);
  CHECK(fleet.show(PhaseSeconds{.spawn = 1}).spawn == 3);
}

}  // namespace
}  // namespace ddprun::rendezvous
