// SPDX-License-Identifier: Apache-2.0
// The states × events table of docs/internals/rendezvous.md, case by case.
#include "rendezvous/membership/machine.h"

#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::Script;

TEST_CASE("Machine: a round starts with the last Join, ranks are prefix sums") {
  Script j(3);
  Join big = j.make_join("1");
  big.num_workers = 4;
  j.join("1", big);
  j.join("2");
  CHECK(j.got<Waiting>("1").have_nodes == 1);
  CHECK_FALSE(j.got<Waiting>("1").spare);
  CHECK(j.round("1") == 0);
  j.join("3");
  CHECK(j.round("1") == 1);
  const auto* start = j.last<StartRound>("3");
  REQUIRE(start != nullptr);
  CHECK(start->node_rank == 2);
  CHECK(start->first_global_rank == 5);
  CHECK(start->world_size == 6);
  CHECK(start->master_addr == "10.0.0.1");
  CHECK(start->master_port == 1000);
  CHECK_FALSE(start->serve_store);
}

TEST_CASE("Machine: jobs of one user that differ in the command's hash are told of each other") {
  Script j(2);
  const auto join_as = [&](const std::string& name, const std::string& run_id) {
    Join join = j.make_join(name);
    join.run_id = run_id;
    j.join(name, join);
    j.wait(1s);
    return j.got<Waiting>(name).note;
  };
  CHECK(join_as("1", "7-0123456789ab").empty());
  SECTION("both hear it") {
    CHECK_THAT(join_as("2", "7-ba9876543210"),
               Contains("7-0123456789ab, waits too (1 of 2)") && Contains("same --rdzv-id"));
    CHECK_THAT(j.got<Waiting>("1").note, Contains("Another job of yours, 7-ba9876543210"));
    CHECK(j.got<Waiting>("1").have_nodes == 1);
    j.join("3", [&] {
      Join join = j.make_join("3");
      join.run_id = "7-0123456789ab";
      return join;
    }());
    CHECK(j.round("1") == 1);
  }
  SECTION("another user's job, or a job with a name, is none of theirs") {
    CHECK(join_as("2", "8-ba9876543210").empty());
    CHECK(join_as("3", "7-mine").empty());
    CHECK(join_as("4", "train").empty());
    CHECK(j.got<Waiting>("1").note.empty());
  }
}

TEST_CASE(
    "Machine: a machine closed to new jobs sends a waiting node away, running jobs end here") {
  Script j;
  j.join("1");
  j.join("2");
  REQUIRE(j.round("1") == 1);
  Join other = j.make_join("3");
  other.run_id = "other";
  j.join("3", other);
  REQUIRE(j.last<Welcome>("3") != nullptr);
  j.close_to_new_jobs();
  CHECK(j.got<Refused>("3").again);
  CHECK(j.agents["3"].closed);
  other.instance = "4";
  j.join("4", other);
  CHECK(j.got<Refused>("4").again);
  CHECK(j.agents["4"].closed);
  CHECK_FALSE(j.agents["1"].closed);
  for (const char* node : {"1", "2"}) j.says(node, WorkersSucceeded{1});
  j.join("1");  // it comes for its verdict
  CHECK(j.got<JobEnd>("1").exit_code == 0);
  for (const char* node : {"1", "2"}) j.acks(node);
  CHECK(j.table.idle());
}

TEST_CASE("Machine: --node-rank comes first, then join order, rank 0 stays on its node") {
  Script j(3, 1);
  Join third = j.make_join("1");
  j.join("1", third);
  Join zero = j.make_join("2");
  zero.node_rank = 0;
  j.join("2", zero);
  j.join("3");
  CHECK(j.got<StartRound>("2").node_rank == 0);
  CHECK(j.got<StartRound>("1").node_rank == 1);
  CHECK(j.got<StartRound>("3").node_rank == 2);
  j.fails("1", 1, 3);
  for (const char* name : {"3", "1", "2"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.got<StartRound>("2").round == 2);
  CHECK(j.got<StartRound>("2").node_rank == 0);
  CHECK(j.got<StartRound>("1").node_rank == 1);
  CHECK(j.got<StartRound>("1").master_port == 1001);
}

TEST_CASE("Machine: a node that came over loopback is reached where the rendezvous is") {
  Script j(2);
  Join first = j.make_join("local");
  first.node_rank = 0;
  j.join("local", first);
  j.join("5");
  CHECK(j.got<StartRound>("5").master_addr == "10.0.0.200");
  CHECK(j.got<StartRound>("local").node_addr == "10.0.0.200");
}

TEST_CASE("Machine: a failed worker stops the round everywhere, the budget ends the job") {
  Script j(2, 1);
  j.join("1");
  j.join("2");
  j.says("1", WorkersRunning{1});
  j.fails("1", 1, 3);
  CHECK_THAT(j.got<StopRound>("2").reason, Contains("exit code 3") && Contains("restart 1 of 1"));
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("1") == 1);  // not before all nodes have stopped
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.round("1") == 2);
  CHECK(j.got<StartRound>("2").restart_count == 1);
  j.fails("2", 2, 0, 11);
  CHECK(j.got<StopRound>("1").round == 2);
  j.says("2", WorkersStopped{2, 1001});
  CHECK(j.last<JobEnd>("2") == nullptr);  // the round's store lives until its last worker is gone
  j.says("1", WorkersStopped{2, 1001});
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<JobEnd>(name).exit_code == 139);
    CHECK(j.got<JobEnd>(name).first_failure->node_rank == 1);
    CHECK_THAT(j.got<JobEnd>(name).reason, Contains("SIGSEGV") && Contains("used up"));
  }
  CHECK_FALSE(j.table.idle());
  j.acks("1");
  j.acks("2");
  CHECK(j.table.idle());
}

TEST_CASE("Machine: late messages of an old round change nothing") {
  Script j(2, 3);
  j.join("1");
  j.join("2");
  j.fails("1", 1, 3);
  for (const char* name : {"1", "2"}) j.says(name, WorkersStopped{1, 1001});
  REQUIRE(j.round("2") == 2);
  j.fails("1", 1, 3);
  j.says("1", WorkersSucceeded{1});
  j.says("2", WorkersStopped{1, 1002});
  CHECK(j.table.status()[0].phase == "running");
  CHECK(j.table.status()[0].failures == 1);
  CHECK(j.last<JobEnd>("1") == nullptr);
}

TEST_CASE("Machine: exit barrier: the job ends when the last node has finished") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.says("1", WorkersSucceeded{1});
  CHECK(j.last<JobEnd>("1") == nullptr);
  SECTION("with 0") {
    j.says("2", WorkersSucceeded{1});
    CHECK(j.got<JobEnd>("1").exit_code == 0);
    CHECK(j.got<JobEnd>("2").exit_code == 0);
  }
  SECTION("or at its deadline, naming who still runs") {
    j.says("2", WorkersRunning{1});
    j.wait_alive(3601s);
    CHECK(j.got<JobEnd>("1").exit_code == 75);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("still running") && Contains("node 1 (2,"));
  }
  SECTION("a finished node that lost contact and came back stays finished") {
    j.closes("1");  // the node noticed silence, and "stopped" its workers
    j.join("1");
    j.says("1", WorkersStopped{1, 1001});
    CHECK(j.last<StopRound>("2") == nullptr);
    j.says("2", WorkersSucceeded{1});
    CHECK(j.got<JobEnd>("1").exit_code == 0);
  }
  SECTION("a finished node that is lost is no failure") {
    j.closes("2");  // the node has finished, else its loss would be a failure
    j.join("2");
    j.says("2", WorkersRunning{1});
    j.says("2", WorkersSucceeded{1});
    CHECK(j.got<JobEnd>("1").exit_code == 0);
  }
}

TEST_CASE("Machine: a finished node that has said it is empty isn't waited for at a restart") {
  Script j(2, 1);
  j.join("1");
  j.join("2");
  j.says("1", WorkersSucceeded{1});
  j.says("1", WorkersStopped{1, 1001});
  j.fails("2", 1, 3);
  CHECK(j.last<StopRound>("1") == nullptr);
  j.says("2", WorkersStopped{1, 1002});
  REQUIRE(j.round("1") == 2);
  CHECK(j.got<StartRound>("2").master_port == 1001);
  j.says("1", WorkersSucceeded{2});
  j.fails("2", 2, 4);
  CHECK(j.got<StopRound>("1").round == 2);  // in round 2 it has not said that they stopped
}

TEST_CASE("Machine: a connection that comes back within the grace changes nothing") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.closes("2");
  j.wait(149ms);
  j.fails("1", 1, 3);  // node 2 is told once it is back
  CHECK(j.last<StopRound>("2") == nullptr);
  j.join("2");
  CHECK_THAT(j.got<StopRound>("2").reason, Contains("exit code 3"));
}

TEST_CASE("Machine: a lost node without spare ends the job with 75 and its name") {
  Script j(2);
  j.join("1");
  j.join("2");
  SECTION("end of connection") {
    j.closes("2");
    j.wait(151ms);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("node 1 (2, 10.0.0.2) was lost"));
  }
  SECTION("silence") {
    for (int i = 0; i < 6; ++i) {
      j.wait(900ms);
      j.hears("1");
    }
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("nothing was heard of it for 5000 ms"));
  }
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  j.acks("1");
  j.closes("2");
  j.join("2");  // it comes with its session
  CHECK_THAT(j.got<Refused>("2").message, Contains("given up as lost"));
}

TEST_CASE(
    "Machine: the spare waits after a loss by silence until the lost node must have stopped") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.join("3");
  CHECK_THAT(j.got<Waiting>("3").note, Contains("job job already has 2 of 2; waiting as spare"));
  for (int i = 0; i < 6; ++i) {
    j.wait(900ms);
    j.hears("1");
    j.hears("3");
  }
  REQUIRE(j.last<StopRound>("1") != nullptr);
  j.says("1", WorkersStopped{1, 1001});
  CHECK(j.round("3") == 0);
  j.wait(2000ms);
  CHECK(j.round("3") == 2);
  CHECK(j.got<StartRound>("3").node_rank == 1);
}

TEST_CASE(
    "Machine: a node that says it is cut off is waited for, though its connection has ended") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.join("3");
  const auto lose = [&](bool says_so) {
    if (says_so) j.mentions("2", CutOff{});
    j.closes("2");
    j.wait(200ms);
    REQUIRE(j.last<StopRound>("1") != nullptr);
    j.says("1", WorkersStopped{1, 1001});
  };
  SECTION("it says so: its workers may live for a moment") {
    lose(true);
    CHECK(j.round("3") == 0);
    j.wait(2000ms);
    CHECK(j.round("3") == 2);
  }
  SECTION("it doesn't: they are gone with it") {
    lose(false);
    CHECK(j.round("3") == 2);
  }
}

TEST_CASE("Machine: Leave ends a running job on all nodes, but not one that only waits") {
  Script j(2);
  j.join("1");
  SECTION("waiting") {
    j.says("1", Leave{"received SIGINT", 130});
    CHECK(j.got<JobEnd>("1").exit_code == 130);
    CHECK(j.table.idle());
  }
  SECTION("running") {
    j.join("2");
    j.says("1", Leave{"received SIGTERM", 143});
    CHECK(j.got<JobEnd>("2").exit_code == 143);
    CHECK_THAT(j.got<JobEnd>("2").reason, Contains("node 0 (1, 10.0.0.1) left: received SIGTERM"));
  }
}

TEST_CASE("Machine: a node that is away when the job ends holds it for the grace only") {
  const bool silent = GENERATE(false, true);
  Script j;
  j.join("1");
  j.join("2");
  j.wait(1s);
  j.hears("1");
  if (!silent) j.closes("2");
  j.says("1", Leave{"received SIGTERM", 143});
  j.acks("1");
  REQUIRE(j.table.status().at(0).phase == "ended");
  const auto ended_at = j.now;
  while (!j.table.idle() && j.now < ended_at + 60s) j.wait(100ms);
  CHECK(j.now - ended_at <= (silent ? 4100ms : 1100ms));
}

TEST_CASE("Machine: join time-out names how many came and their hosts") {
  Script j(3);
  j.join("1");
  j.join("2");
  j.wait_alive(601s);
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("only 2 of 3 nodes came") &&
                                            Contains("within 600 s") &&
                                            Contains("1 (10.0.0.1), 2 (10.0.0.2)") &&
                                            Contains("the same --rdzv-endpoint and --rdzv-id"));
  Script fixed(2);
  fixed.settings.rdzv_backend = kStaticBackend;
  fixed.join("1");
  fixed.wait_alive(601s);
  CHECK_THAT(fixed.got<JobEnd>("1").reason,
             Contains("the same --master-addr and --master-port, and its own --node-rank"));
}

TEST_CASE("Machine: workers that are not started or not stopped in time end the job by name") {
  Script j(2, 3);
  j.join("1");
  j.join("2");
  j.says("1", WorkersRunning{1});
  SECTION("start") {
    j.wait_alive(301s);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("not started") && Contains("node 1 (2,"));
  }
  SECTION("stop") {
    j.fails("1", 1, 1);
    j.says("1", WorkersStopped{1, 1001});
    j.wait_alive(106s);
    CHECK_THAT(j.got<JobEnd>("1").reason, Contains("not stopped") && Contains("node 1 (2,"));
  }
  CHECK(j.got<JobEnd>("2").exit_code == 75);
}

TEST_CASE("Machine: a node whose killed workers take long to die has its place in the next round") {
  Script j(2, 3);
  j.join("1");
  j.join("2");
  j.fails("1", 1, 1);
  j.says("1", WorkersStopped{1, 1001});
  j.wait_alive(j.timeouts.shutdown + kDeathLimit);
  j.says("2", WorkersStopped{1, 1002});
  CHECK(j.round("2") == 2);
}

TEST_CASE("Machine: a setting that must agree is refused with both values") {
  Script j(2);
  j.join("1");
  Join other = j.make_join("2");
  SECTION("--nnodes") {
    other.settings.min_nodes = other.settings.max_nodes = 4;
    j.join("2", other);
    CHECK_THAT(j.got<Refused>("2").message, Contains("--nnodes is 4 here, but 2 on 1 (10.0.0.1)"));
  }
  SECTION("--max-restarts") {
    other.settings.max_restarts = 5;
    j.join("2", other);
    CHECK_THAT(j.got<Refused>("2").message, Contains("--max-restarts is 5 here, but 0 on 1"));
  }
  SECTION("--rdzv-backend") {
    other.settings.rdzv_backend = "static";
    j.join("2", other);
    CHECK_THAT(j.got<Refused>("2").message, Contains("--rdzv-backend is static here, but c10d"));
  }
  SECTION("protocol version") {
    other.version = other.oldest_version = 9;
    j.join("2", other);
    CHECK_THAT(j.got<Refused>("2").message,
               Contains("version 9") && Contains("rendezvous versions 1 to 3"));
  }
  CHECK(j.got<Refused>("2").exit_code == 2);
  CHECK(j.agents["2"].closed);
  CHECK(j.table.status()[0].nodes.size() == 1);
}

TEST_CASE("Machine: a node rank given twice or out of range is refused") {
  Script j(2);
  Join join = j.make_join("1");
  join.node_rank = 1;
  j.join("1", join);
  join = j.make_join("2");
  join.node_rank = 1;
  j.join("2", join);
  CHECK_THAT(j.got<Refused>("2").message, Contains("--node-rank=1 is already taken by 1"));
  join = j.make_join("3");
  join.node_rank = 2;
  j.join("3", join);
  CHECK_THAT(j.got<Refused>("3").message, Contains("node ranks are 0 to 1"));
}

TEST_CASE("Machine: those who wait are told who was refused, and why") {
  Script j(2);
  j.join("1");
  j.wait(1500ms);
  Join other = j.make_join("2");
  other.settings.max_restarts = 3;
  j.join("2", other);
  CHECK(j.got<Waiting>("1").note ==
        "waiting for nodes: 1 of 2 are here. 2 (10.0.0.2) was refused: " +
            j.got<Refused>("2").message);
  Script late(2);
  late.timeouts.join = 2s;
  late.join("1");
  late.join("2", other);
  late.wait_alive(2s);
  CHECK_THAT(late.got<JobEnd>("1").reason,
             Contains("(10.0.0.1). 2 (10.0.0.2) was refused: ") && !Contains("start ddprun with"));
  j.agents["2"] = {};
  j.join("2");
  CHECK(j.round("1") == 1);
}

TEST_CASE("Machine: an agent started again takes the place of its predecessor") {
  Script j(2);
  Join join = j.make_join("1");
  join.node_rank = 0;
  j.join("1", join);
  j.closes("1");
  join.instance = "another process";
  j.join("9", join);
  j.join("2");
  CHECK(j.got<StartRound>("9").node_rank == 0);
  CHECK(j.got<StartRound>("2").num_nodes == 2);
}

TEST_CASE("Machine: a Join whose Welcome was lost is not a second node") {
  Script j(2);
  j.join("1");
  j.closes("1");
  j.agents["1"].session.clear();
  j.join("1");
  CHECK(j.round("1") == 0);
  CHECK(j.table.status()[0].nodes.size() == 1);
}

TEST_CASE("Machine: a broken protocol costs that connection only") {
  Script j(2);
  j.join("1");
  j.join("2");
  j.agents["2"].channel.number(Ack{});  // a number that is never sent
  j.says("2", WorkersRunning{1});
  CHECK(j.agents["2"].closed);
  CHECK(j.table.status()[0].phase == "running");
}

TEST_CASE("Machine: one static job per daemon port, it names no store of its own") {
  Script j(1);
  j.settings.rdzv_backend = "static";
  j.join("1");
  CHECK(j.got<StartRound>("1").master_port == 0);
  CHECK_FALSE(j.got<StartRound>("1").serve_store);
  Join other = j.make_join("2");
  other.run_id = "other";
  j.join("2", other);
  CHECK_THAT(j.got<Refused>("2").message,
             Contains("is in use by ddprun, pid 0 on 1, which runs train (job job)"));
}

}  // namespace
}  // namespace ddprun::membership
