// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet.h"

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using channel::kMostInputBytes;
using channel::Room;

TEST_CASE("input: nothing is sent before global rank 0 is somewhere") {
  InputFlow flow(2);
  CHECK((flow.node() == -1 && flow.room() == 0));
  flow.has_room(1, Room{100, false});
  CHECK(flow.room() == 0);
  flow.has_room(1, Room{0, true});
  CHECK((flow.node() == 1 && flow.room() == 100));
}

TEST_CASE("input: it never sends more than its node has room for") {
  InputFlow flow(1);
  flow.has_room(0, Room{100, true});
  flow.sent(60);
  CHECK(flow.room() == 40);
  flow.has_room(0, Room{60, false});
  CHECK(flow.room() == 100);
}

TEST_CASE(
    "input: it follows global rank 0, and what is on its way to the node before still counts") {
  InputFlow flow(2);
  flow.has_room(0, Room{100, true});
  flow.sent(70);
  flow.has_room(1, Room{100, true});
  CHECK((flow.node() == 1 && flow.room() == 100));
  flow.has_room(0, Room{0, true});
  CHECK((flow.node() == 0 && flow.room() == 30));
}

TEST_CASE("input: it waits for the next node once its own is gone") {
  InputFlow flow(2);
  flow.has_room(0, Room{100, true});
  flow.gone(1);
  CHECK(flow.node() == 0);
  flow.gone(0);
  CHECK((flow.node() == -1 && flow.room() == 0));
  flow.has_room(1, Room{7, true});
  CHECK((flow.node() == 1 && flow.room() == 7));
}

TEST_CASE("input: an agent that has room for everything gets no more than any other") {
  InputFlow flow(1);
  for (int i = 0; i < 3; ++i) flow.has_room(0, Room{kMostInputBytes, true});
  CHECK(flow.room() == kMostInputBytes);
}
