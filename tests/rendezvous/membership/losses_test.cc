// SPDX-License-Identifier: Apache-2.0
// Lost and excluded nodes: their costs, and their later fate.
#include <limits>

#include "rendezvous/membership/state.h"
#include "rendezvous/membership/verdicts.h"
#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::Script;

WorkerRequest exclude_me(std::uint64_t round = 1) {
  return {round, WorkerRequest::Kind::kExcludeNode, 0, "ECC errors", 1};
}

TEST_CASE("Losses: a rack that goes at once costs one round, so one node loss") {
  Script j(4, 0);
  j.settings.max_node_losses = 1;
  j.settings.spares = 3;
  for (const char* name : {"1", "2", "3", "4", "5", "6", "7"}) j.join(name);
  for (const char* name : {"2", "3", "4"}) j.closes(name);
  j.wait(200ms);
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("7") == 2);
  CHECK(j.last<JobEnd>("1") == nullptr);
  CHECK(j.table.status().front().node_losses == 1);
}

TEST_CASE("Losses: MIN alone counts while the workers are stopped or the next round waits") {
  Script j(2, 5);
  j.settings.max_node_losses = 0;
  j.settings.spares = 1;
  j.timeouts.max_restart_delay = 10s;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.fails("1", 1, 3);
  j.closes("2");
  j.wait(200ms);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("3") == 2);
  CHECK(j.table.status().front().node_losses == 0);
}

TEST_CASE("Losses: an excluded node that crashes while it is stopped is not lost twice") {
  Script j(2, 0);
  j.settings.max_node_losses = 1;
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.says("2", exclude_me());
  j.closes("2");
  j.wait(200ms);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("3") == 2);
  CHECK(j.table.status().front().node_losses == 1);
}

TEST_CASE(
    "Losses: the end is decided, so that nodes lost meanwhile don't keep others from theirs") {
  Script j(3, 0);
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.fails("1", 1, 3);
  j.closes("3");
  j.wait(200ms);
  CHECK(j.last<JobEnd>("1") == nullptr);  // workers end in order, with the store they know
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("2").exit_code == 3);
}

Leave alone() { return {"the connection to its launcher was lost", 75, true}; }

TEST_CASE("Leaving alone: the others go on, once the leaving node's workers are gone") {
  Script j(2, 0);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.says("2", alone());
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("3") == 0);  // the workers of node 2 may live
  j.closes("2");
  j.wait(0ms);
  CHECK(j.round("3") == 2);
  CHECK(j.round("1") == 2);
  CHECK(j.last<JobEnd>("1") == nullptr);
  CHECK(j.table.status().front().node_losses == 1);
}

TEST_CASE("Leaving alone: a signal at one node of an elastic job, a second one ends all") {
  Script j(3, 0);
  j.settings.min_nodes = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.says("2", Leave{"received SIGTERM", 143});
  CHECK(j.got<JobEnd>("2").exit_code == 143);
  CHECK(j.last<JobEnd>("1") == nullptr);
  SECTION("the others go on") {
    j.says("1", WorkersStopped{1, 1001});
    j.says("3", WorkersStopped{1, 1001});
    j.closes("2");
    j.wait_alive(31s);
    CHECK(j.round("1") == 2);
    CHECK(j.round("3") == 2);
  }
  SECTION("a second signal") {
    j.says("2", Leave{.reason = "received SIGTERM again", .exit_code = 143, .everyone = true});
    j.says("1", WorkersStopped{1, 1001});
    j.says("3", WorkersStopped{1, 1001});
    j.closes("2");
    j.wait(0ms);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("left: received SIGTERM again"));
  }
}

TEST_CASE("Leaving alone: it is the job's end with too few others, and the node is named") {
  Script j(2, 5);
  for (const char* name : {"1", "2"}) j.join(name);
  j.says("2", alone());
  j.says("1", WorkersStopped{1, 1001});
  j.closes("2");
  j.wait(0ms);
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("1").reason,
             Contains("left: the connection to its launcher was lost; 1 of 2 nodes are left"));
}

TEST_CASE("Leaving alone: the node just goes between two rounds, or with all its work done") {
  Script j(2, 5);
  j.settings.spares = 1;
  j.timeouts.max_restart_delay = 10s;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  SECTION("while its workers are being stopped") {
    j.fails("1", 1, 3);
    j.says("2", alone());
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.round("3") == 0);
    j.closes("2");
    j.wait(0ms);
    CHECK(j.round("3") == 2);
  }
  SECTION("when they are gone") {
    j.fails("1", 1, 3);
    j.says("2", WorkersStopped{1, 1001});
    j.says("2", alone());
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.round("3") == 2);
  }
  SECTION("when they have finished") {
    j.says("2", WorkersSucceeded{1});
    j.says("2", alone());
    j.says("1", WorkersSucceeded{1});
    CHECK(j.got<JobEnd>("1").exit_code == 0);
  }
  CHECK(j.table.status().front().node_losses == 0);
}

TEST_CASE("Exclusion: a signal at the excluded node's ddprun is its own end only") {
  Script j(2, 0);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.says("2", exclude_me());
  SECTION("while its workers are stopped") {
    j.says("2", Leave{"received SIGTERM", 143});
    CHECK(j.got<JobEnd>("2").exit_code == 143);
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.round("1") == 1);  // the workers of node 2 may live
    j.closes("2");
    j.wait(0ms);
  }
  SECTION("when they are gone") {
    j.says("2", WorkersStopped{1, 1001});
    j.says("2", Leave{"received SIGTERM", 143});
    CHECK(j.got<JobEnd>("2").exit_code == 143);
    j.says("1", WorkersStopped{1, 1001});
  }
  CHECK(j.round("3") == 2);
  CHECK(j.round("1") == 2);
  CHECK(j.last<JobEnd>("1") == nullptr);
}

TEST_CASE("Exclusion: the node goes when the round is stopped everywhere, as its store does") {
  Script j(2, 0);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  REQUIRE(j.got<StartRound>("1").serve_store);
  j.says("1", exclude_me());
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.last<JobEnd>("1") == nullptr);
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK(j.agents["1"].closed);
  CHECK(j.round("3") == 2);
}

TEST_CASE("Exclusion: it is the machine that is out, with every agent on it") {
  Script j(2, 5);
  j.settings.spares = 2;
  j.join_from("1", "1");
  j.join_from("2", "2");
  j.join_from("2", "2b");
  j.join_from("3", "3");
  j.says("2", exclude_me());
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.last<JobEnd>("2b") == nullptr);
  j.says("2", WorkersStopped{1, 1001});
  REQUIRE(j.last<JobEnd>("2b") != nullptr);  // this node ran nothing
  CHECK(j.got<JobEnd>("2b").exit_code == 75);
  CHECK(j.agents["2b"].closed);
  CHECK(j.round("1") == 2);
  CHECK(j.round("3") == 2);
  CHECK(j.got<StartRound>("3").num_nodes == 2);
  CHECK(j.round("2b") == 0);
  CHECK(j.round("2") == 1);
}

TEST_CASE("Exclusion: two members on one machine are out together") {
  Script j(2, 5);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) {
    j.join_from(name[0] == '3' ? "b" : "a", name);
  }
  j.says("2", exclude_me());
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK_THAT(j.got<JobEnd>("3").reason, Contains("1 of 2 nodes are left"));
}

TEST_CASE("Joining: a host that comes and breaks again and again ends ever fewer rounds") {
  Script j(1, 0);
  j.settings.max_nodes = 2;
  j.settings.restart_on_join = true;
  j.timeouts.last_call = 0ms;
  j.join("1");
  j.wait(1ms);
  REQUIRE(j.round("1") == 1);
  const auto comes = [&](int time) {
    j.agents["2"] = {};
    Join join = j.make_join("2");
    join.instance = "2." + std::to_string(time);
    j.join("2", join);
  };
  const auto breaks = [&](std::uint64_t round) {  // the node breaks before it has a place
    j.closes("2");
    j.wait(200ms);
    j.says("1", WorkersStopped{round, 1001});
    j.wait(1ms);
    REQUIRE(j.round("1") == round + 1);
  };
  comes(1);
  CHECK(j.got<StopRound>("1").round == 1);
  breaks(1);
  comes(2);
  CHECK(j.got<StopRound>("1").round == 1);
  j.wait_alive(29s);
  CHECK(j.got<StopRound>("1").round == 1);
  j.wait_alive(2s);
  CHECK(j.got<StopRound>("1").round == 2);
  breaks(2);
  comes(3);
  j.wait_alive(59s);
  CHECK(j.got<StopRound>("1").round == 2);
  j.wait_alive(2s);
  CHECK(j.got<StopRound>("1").round == 3);
  // The node stays, and the larger round does steps. So the next node that joins is welcome at
  // once.
  j.says("1", WorkersStopped{3, 1001});
  REQUIRE(j.round("2") == 4);
  for (const char* name : {"1", "2"}) j.says(name, FirstStep{4, 1});
  j.closes("2");
  j.wait(200ms);
  j.says("1", WorkersStopped{4, 1001});
  j.wait(1ms);
  REQUIRE(j.round("1") == 5);
}

TEST_CASE("Joining: a restart delays the next one only if its nodes left before a step") {
  Script j(1, 0);
  j.settings.max_nodes = 3;
  j.settings.restart_on_join = true;
  j.timeouts.last_call = 1ms;
  j.join("1");
  j.wait(1ms);
  j.join("2");
  j.says("1", WorkersStopped{1, 1001});
  j.wait(1ms);
  REQUIRE(j.round("2") == 2);
  SECTION("at once, while the larger round lives") {
    j.join("3");
    CHECK(j.got<StopRound>("1").round == 2);
  }
  SECTION("after a while, when what it brought has gone again") {
    j.closes("2");
    j.wait(200ms);
    j.says("1", WorkersStopped{2, 1001});
    j.wait(1ms);
    REQUIRE(j.round("1") == 3);
    j.join("3");
    CHECK(j.got<StopRound>("1").round == 2);
    j.wait_alive(31s);
    CHECK(j.got<StopRound>("1").round == 3);
  }
  SECTION("at once, when it has done steps before it went") {
    for (const char* name : {"1", "2"}) j.says(name, FirstStep{2, 1});
    j.closes("2");
    j.wait(200ms);
    j.says("1", WorkersStopped{2, 1001});
    j.wait(1ms);
    j.join("3");
    CHECK(j.got<StopRound>("1").round == 3);
  }
}

TEST_CASE("Losses: a rendezvous that stood still first hears what was said meanwhile") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.stand_still(20s);
  CHECK_FALSE(j.last<JobEnd>("1"));
  SECTION("all have said something") {
    for (const char* name : {"1", "2"}) j.hears(name);
    j.wait(4s);
    CHECK_FALSE(j.last<JobEnd>("1"));
  }
  SECTION("one has not") {
    j.hears("1");
    j.wait(99ms);
    CHECK_FALSE(j.last<JobEnd>("1"));
    j.wait(1ms);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("node 1 (2, 10.0.0.2) was lost"));
  }
  SECTION("it stands still again") {
    j.stand_still(20s);
    for (const char* name : {"1", "2"}) j.hears(name);
    j.wait(4s);
    CHECK_FALSE(j.last<JobEnd>("1"));
  }
  SECTION("somebody else's deadlines put off nothing") {
    for (int i = 0; i < 5; ++i) {
      j.join("late" + std::to_string(i));
      j.closes("late" + std::to_string(i));
      j.hears("1");
      j.wait(20ms);
    }
    REQUIRE(j.last<StopRound>("1"));  // they take the place of the lost node
    CHECK_THAT(j.got<StopRound>("1").reason, Contains("node 1 (2, 10.0.0.2) was lost"));
  }
}

TEST_CASE("Losses: the others wait for a replacement if too few nodes are left, for so long") {
  Script j(2, 0);
  j.timeouts.replacement = 60s;
  j.join("1");
  j.join("2");
  j.closes("2");
  j.wait(200ms);
  CHECK(j.last<JobEnd>("1") == nullptr);
  REQUIRE(j.last<StopRound>("1") != nullptr);
  j.says("1", WorkersStopped{1, 1001});
  SECTION("it comes") {
    j.wait_alive(50s);
    j.join("3");
    CHECK(j.round("1") == 2);
    CHECK(j.round("3") == 2);
    CHECK(j.table.status().front().node_losses == 1);
  }
  SECTION("none comes") {
    j.wait_alive(59s);
    CHECK(j.last<JobEnd>("1") == nullptr);
    j.wait_alive(2s);
    CHECK(j.got<JobEnd>("1").exit_code == 75);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("(2, 10.0.0.2) was lost") &&
                                              Contains("1 of 2 nodes are left and no other came "
                                                       "within 60 s"));
  }
}

TEST_CASE("Losses: the last step of a node that fenced itself is kept") {
  Script j(2, 0);
  j.join("1");
  j.join("2");
  for (const char* name : {"1", "2"}) j.says(name, WorkersRunning{1});
  for (const char* name : {"1", "2"}) j.says(name, FirstStep{1, 1});
  j.wait_alive(10s);
  j.says("2", WorkersStopped{1, 1001, 11});  // it stops without being asked
  j.says("1", WorkersStopped{1, 1001, 10});
  REQUIRE(j.round("1") == 2);
  CHECK(j.table.status().front().rounds.front().last_step == 11);
}

TEST_CASE("Admission: more workers than a rank can count are refused") {
  JobState job;
  job.run_id = "job";
  job.settings.min_nodes = job.settings.max_nodes = kMaxNodes;
  Join join;
  join.settings = job.settings;
  join.num_workers = kMaxWorkersPerNode;
  constexpr int kFit = std::numeric_limits<int>::max() / kMaxWorkersPerNode;
  for (int i = 0; i < kFit - 1; ++i)
    job.nodes.add(static_cast<NodeId>(i)).join.num_workers = kMaxWorkersPerNode;
  CHECK_FALSE(admission(job, join, {}));
  job.nodes.add(kFit).join.num_workers = kMaxWorkersPerNode;
  REQUIRE(admission(job, join, {}));
  CHECK_THAT(admission(job, join, {})->message, Contains("--nproc-per-node"));
  join.num_workers = 1;
  CHECK_FALSE(admission(job, join, {}));
}

}  // namespace
}  // namespace ddprun::membership
