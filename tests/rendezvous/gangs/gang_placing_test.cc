// SPDX-License-Identifier: Apache-2.0
// The nodes that a gang gets, and the nodes that it holds.
#include "rendezvous/gangs/gang_queue.h"

#include <map>
#include <string>
#include <vector>

#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/thread_cpu.h"

namespace ddprun::gangs {
namespace {

using Names = std::vector<std::string>;

Names names_of(const std::vector<const GangPlacing::Node*>& nodes) {
  Names names;
  for (const auto* node : nodes) names.push_back(node->name);
  return names;
}

// Nodes and gangs in the form that a queue has them.
struct PlacingWorld {
  void node(const std::string& name, int slots, const std::string& owner = "alice") {
    GangQueue::Node& node = nodes[{name, owner}];
    node.name = name;
    node.owner = owner;
    node.slots = slots;
    node.connection = nodes.size();
  }
  void runs(const std::string& node, int slots) {
    const std::uint64_t number = gangs.size() + 1;
    gangs[number].state.parts.push_back(
        {.node = node, .slots = slots, .phase = PartPhase::kRuns, .exit_code = 0, .reason = {}});
  }
  static GangState wants(int min_nodes, int max_nodes, int slots) {
    GangState gang;
    gang.owner = "alice";
    gang.min_nodes = min_nodes;
    gang.max_nodes = max_nodes;
    gang.slots = slots;
    return gang;
  }

  std::map<GangQueue::NodeKey, GangQueue::Node> nodes;
  std::map<std::uint64_t, GangQueue::Gang> gangs;
};

TEST_CASE("GangPlacing: the first nodes by name, as many as there are up to the most") {
  PlacingWorld world;
  for (const char* name : {"n3", "n1", "n2"}) world.node(name, 4);
  const auto placed = [&](const GangState& gang) {
    return names_of(*GangPlacing(world.nodes, world.gangs).place(gang));
  };
  CHECK(placed(PlacingWorld::wants(1, 2, 4)) == Names{"n1", "n2"});
  CHECK(placed(PlacingWorld::wants(1, 9, 0)) == Names{"n1", "n2", "n3"});
}

TEST_CASE("GangPlacing: a gang that gets slots takes them, also before it begins") {
  PlacingWorld world;
  for (const char* name : {"n1", "n2"}) world.node(name, 4);
  GangPlacing placing(world.nodes, world.gangs);
  CHECK(names_of(*placing.place(PlacingWorld::wants(1, 1, 3))) == Names{"n1"});
  CHECK(names_of(*placing.place(PlacingWorld::wants(1, 2, 1))) == Names{"n1", "n2"});
  CHECK_FALSE(placing.place(PlacingWorld::wants(1, 1, 0)));
}

// With a walk through all parts for each node of each gang this takes minutes.
TEST_CASE("GangPlacing: the parts of all gangs are gone through once for all gangs that wait") {
  PlacingWorld world;
  for (int node = 0; node < 1'000; ++node) {
    world.node(concat("n", node), 1'000);
    for (int gang = 0; gang < 100; ++gang) world.runs(concat("n", node), 1);
  }
  GangPlacing placing(world.nodes, world.gangs);
  for (int gang = 0; gang < 100; ++gang) {
    CHECK(placing.place(PlacingWorld::wants(1'000, 1'000, 1)));
  }
}

// Walking all nodes for each gang that waits costs 30 times as much.
TEST_CASE("GangPlacing: a thousand gangs that wait cost little more than one") {
  PlacingWorld world;
  for (int node = 0; node < 1'000; ++node) {
    world.node(concat("n", node), 8);
    world.runs(concat("n", node), 8);
  }
  const auto cost = [&](int num_gangs) {
    const double begun = test::thread_cpu_seconds();
    GangPlacing placing(world.nodes, world.gangs);
    for (int gang = 0; gang < num_gangs; ++gang) {
      CHECK_FALSE(placing.place(PlacingWorld::wants(1 + gang, 1'000, 8)));
    }
    return test::thread_cpu_seconds() - begun;
  };
  const double one = cost(1);
  CHECK(cost(1'000) < 10 * one);
}

TEST_CASE("GangPlacing: a gang that needs fewer slots gets nodes beside those that are held") {
  PlacingWorld world;
  world.node("large", 8);
  world.node("small", 2);
  world.runs("large", 1);
  GangPlacing placing(world.nodes, world.gangs);
  CHECK_FALSE(placing.place(PlacingWorld::wants(1, 1, 8)));
  CHECK_FALSE(placing.place(PlacingWorld::wants(1, 1, 4)));  // large is held
  CHECK(names_of(*placing.place(PlacingWorld::wants(1, 1, 2))) == Names{"small"});
}

TEST_CASE("GangPlacing: a fitting node is of the gang's owner and large enough, away or in use") {
  PlacingWorld world;
  world.node("away", 4);
  world.nodes.at({"away", "alice"}).connection.reset();
  world.node("of-bob", 4, "bob");
  world.node("small", 1);
  world.node("used", 4);
  world.runs("used", 4);
  const GangPlacing placing(world.nodes, world.gangs);
  CHECK(names_of(placing.fitting(PlacingWorld::wants(1, 1, 2))) == Names{"away", "used"});
}

TEST_CASE("GangPlacing: slots in use are those of all users, of parts not over and of strays") {
  PlacingWorld world;
  world.node("n1", 8);
  world.node("n1", 8, "bob");
  world.runs("n1", 2);
  world.runs("n1", 100);
  world.gangs.at(2).state.parts[0].phase = PartPhase::kEnded;
  world.nodes.at({"n1", "bob"}).strays["stray"] = 3;
  GangPlacing placing(world.nodes, world.gangs);
  CHECK(placing.used_slots().at("n1") == 5);
  CHECK(placing.place(PlacingWorld::wants(1, 1, 3)));
  CHECK_FALSE(placing.place(PlacingWorld::wants(1, 1, 4)));
}

TEST_CASE("GangPlacing: an agent's strays take no more than its slots, whatever it says") {
  PlacingWorld world;
  world.node("n1", 16);
  world.node("n1", 8, "bob");
  for (int i = 0; i < 40'000; ++i) {  // together these are more than an int holds
    world.nodes.at({"n1", "bob"}).strays[std::to_string(i)] = kMaxSlots;
  }
  GangPlacing placing(world.nodes, world.gangs);
  CHECK(placing.used_slots().at("n1") == 8);
  CHECK(placing.place(PlacingWorld::wants(1, 1, 8)));
}

TEST_CASE(
    "GangPlacing: a gang that waits holds what would fit, one that can't ever begin holds "
    "nothing") {
  PlacingWorld world;
  world.node("n1", 4);
  world.node("n2", 4);
  world.node("small", 1);
  world.runs("n1", 4);
  GangPlacing placing(world.nodes, world.gangs);
  CHECK_FALSE(placing.place(PlacingWorld::wants(3, 3, 4)));  // there are only two
  CHECK(placing.place(PlacingWorld::wants(1, 1, 4)));
  CHECK_FALSE(placing.place(PlacingWorld::wants(2, 2, 4)));  // n1 is in use
  CHECK_FALSE(placing.place(PlacingWorld::wants(1, 1, 4)));  // n2 is held
  CHECK(names_of(*placing.place(PlacingWorld::wants(1, 1, 1))) == Names{"small"});
}

}  // namespace
}  // namespace ddprun::gangs
