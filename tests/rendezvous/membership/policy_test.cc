// SPDX-License-Identifier: Apache-2.0
// The limits of what a job survives: budgets, crash loops, faulty nodes, spares, late nodes.
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::Script;

// Both nodes' workers run, one of node "2" fails, and all stop.
void fail_round(Script& j, std::uint64_t round) {
  j.says("1", WorkersRunning{round});
  j.says("2", WorkersRunning{round});
  j.fails("2", round, 3);
  j.says("1", WorkersStopped{round, 1001});
  j.says("2", WorkersStopped{round, 1001});
}

TEST_CASE("Policy: the second of two quick failures waits, and each further one longer") {
  Script j(2, 10);
  j.join("1");
  j.join("2");
  fail_round(j, 1);
  REQUIRE(j.round("1") == 2);  // the next round begins at once
  fail_round(j, 2);
  CHECK_THAT(j.got<StopRound>("1").reason, Contains("restart 2 of 10 in 1 s: 2 rounds in a row"));
  CHECK(j.round("1") == 2);
  j.wait(999ms);
  CHECK(j.round("1") == 2);
  j.wait(1ms);
  REQUIRE(j.round("1") == 3);
  fail_round(j, 3);
  j.wait_alive(1999ms);
  CHECK(j.round("1") == 3);
  j.wait(1ms);
  CHECK(j.round("1") == 4);
  const JobStatus status = j.table.status().front();
  CHECK(status.seconds.delay == Approx(3));
  CHECK(status.rounds[1].seconds.delay == Approx(1));  // the round that caused the delay has it
  CHECK(status.seconds.rendezvous == Approx(0));
}

TEST_CASE("Policy: a round that lived for a minute is no crash loop") {
  Script j(2, 10);
  j.join("1");
  j.join("2");
  fail_round(j, 1);
  j.wait_alive(60s);
  fail_round(j, 2);
  CHECK(j.round("1") == 3);
  fail_round(j, 3);
  CHECK(j.round("1") == 4);
}

TEST_CASE("Policy: the delay has the limit that the job was given") {
  Script j(2, 10);
  j.timeouts.max_restart_delay = 500ms;
  j.join("1");
  j.join("2");
  for (std::uint64_t round = 1; round <= 6; ++round) {
    REQUIRE(j.round("1") == round);
    fail_round(j, round);
    j.wait(500ms);
  }
  Script at_once(2, 10);
  at_once.timeouts.max_restart_delay = 0ms;
  at_once.join("1");
  at_once.join("2");
  for (std::uint64_t round = 1; round <= 6; ++round) {
    REQUIRE(at_once.round("1") == round);
    fail_round(at_once, round);
  }
}

TEST_CASE("Policy: the join time-out begins when the delay is over") {
  Script j(2, 10);
  j.timeouts.join = 1s;
  j.join("1");
  j.join("2");
  for (std::uint64_t round = 1; round <= 3; ++round) {
    fail_round(j, round);
    j.wait_alive(4s);
    REQUIRE(j.round("1") == round + 1);
  }
  CHECK(j.last<JobEnd>("1") == nullptr);
}

TEST_CASE("Policy: node losses have a budget of their own") {
  Script j(1, 0);
  j.settings.max_nodes = 2;
  j.settings.max_node_losses = 1;
  j.timeouts.last_call = 0ms;
  j.settings.min_nodes = j.settings.max_nodes = 2;
  for (const char* name : {"1", "2", "3", "4"}) j.join(name);
  REQUIRE(j.round("2") == 1);
  j.closes("2");
  j.wait(200ms);
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("3") == 2);
  j.closes("3");
  j.wait(200ms);
  CHECK(j.got<JobEnd>("1").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("--max-node-losses is 1"));
}

// Three of 2:4 nodes in round 1, with the default last call of 30 s.
struct ThreeOfFour : Script {
  ThreeOfFour() : Script(2, 10) {
    settings.max_nodes = 4;
    for (const char* name : {"1", "2", "3"}) join(name);
    CHECK(last<Waiting>("1")->note.empty());  // 1 of 2 are here
    wait(1s);
    CHECK(last<Waiting>("1")->note ==
          "3 nodes are here, enough to start; waiting up to 29 s for more (at most 4; "
          "--last-call-timeout)");
    wait_alive(28s);
    CHECK(round("1") == 0);
    wait_alive(1s);
    REQUIRE(round("1") == 1);
  }
};

TEST_CASE("Policy: the others go on a second after a loss, in which another may come") {
  ThreeOfFour j;
  j.closes("3");
  j.wait(150ms);
  for (const char* name : {"1", "2"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.round("1") == 1);
  CHECK(j.got<Waiting>("1").note ==
        "2 nodes are here, enough to go on; waiting up to 1 s for more (at most 4); later "
        "ones wait for the next round");
  SECTION("nobody comes") {
    j.wait(999ms);
    CHECK(j.round("1") == 1);
    j.wait(1ms);
    CHECK(j.round("1") == 2);
    CHECK(j.got<StartRound>("1").num_nodes == 2);
  }
  SECTION("as many as before are there again: at once") {
    j.wait(500ms);
    j.join("4");
    CHECK(j.round("4") == 2);
    CHECK(j.got<StartRound>("1").num_nodes == 3);
  }
}

TEST_CASE("Policy: the last call after a loss by silence is over when the lost one is fenced") {
  ThreeOfFour j;
  for (int second = 0; second < 5; ++second) {
    j.wait(1s);
    for (const char* name : {"1", "2"}) j.hears(name);
  }
  j.wait(100ms);
  for (const char* name : {"1", "2"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.round("1") == 1);
  j.wait(2s);
  CHECK(j.round("1") == 2);
}

TEST_CASE("Policy: the next round begins at once if all nodes of the round are there") {
  ThreeOfFour j;
  j.fails("2", 1, 3);
  for (const char* name : {"1", "2", "3"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.round("1") == 2);
  CHECK(j.got<StartRound>("1").num_nodes == 3);
}

TEST_CASE("Policy: one that lost its connection while all stopped is waited for as briefly") {
  ThreeOfFour j;
  j.fails("2", 1, 3);
  for (const char* name : {"1", "2", "3"}) {
    if (std::string(name) == "3") j.closes("2");
    j.says(name, WorkersStopped{1, 1001});
  }
  CHECK(j.round("1") == 1);
  j.wait(100ms);
  j.join("2");
  CHECK(j.round("2") == 2);
}

TEST_CASE(
    "Policy: a node without a place in the live round is told so, also after its connection "
    "ended") {
  Script j(1);
  j.settings.max_nodes = 3;
  j.settings.spares = 1;
  j.timeouts.last_call = 1s;
  j.join("1");
  j.wait_alive(1s);
  REQUIRE(j.round("1") == 1);
  j.join("2");
  CHECK(j.got<Waiting>("2").spare);
  CHECK(j.got<Waiting>("2").note ==
        "job job runs on 1 node; this one comes in with the next round");
  j.says("1", WorkersRunning{1});
  j.agents["2"].received.clear();
  j.closes("2");
  j.wait(50ms);
  j.join("2");
  CHECK(j.got<Waiting>("2").spare);
}

TEST_CASE("Policy: a node that is the first to fail too often is out, a spare takes its place") {
  Script j(2, 10);
  j.settings.exclude_after = 2;
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  CHECK_THAT(j.got<Waiting>("3").note, Contains("ready as spare (1 of 1)"));
  CHECK(j.got<Waiting>("3").spare);
  fail_round(j, 1);
  REQUIRE(j.got<StartRound>("2").round == 2);
  fail_round(j, 2);
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("2").reason, Contains("excluded") && Contains("first to fail 2 times"));
  CHECK(j.agents["2"].closed);
  j.wait(1s);
  CHECK(j.got<StartRound>("3").round == 3);
  CHECK(j.got<StartRound>("3").node_rank == 1);
  CHECK(j.table.status().front().excluded.size() == 1);

  j.agents["2"] = {};
  Join again = j.make_join("2");
  again.instance = "another";
  j.join("2", again);
  CHECK(j.got<Refused>("2").exit_code == 75);
  CHECK_THAT(j.got<Refused>("2").message, Contains("is excluded"));
}

TEST_CASE("Policy: an excluded node whose workers are gone already is told so, too") {
  Script j(2, 10);
  j.settings.min_nodes = 1;
  j.settings.exclude_after = 1;
  for (const char* name : {"1", "2"}) j.join(name);
  j.says("2", WorkersSucceeded{1});
  j.says("2", WorkersStopped{1, 1001});
  j.fails("2", 1, 3);
  j.says("1", WorkersStopped{1, 1001});
  CHECK_THAT(j.got<JobEnd>("2").reason, Contains("excluded"));
  CHECK(j.agents["2"].closed);
  j.wait_alive(31s);
  CHECK(j.round("1") == 2);
}

TEST_CASE(
    "Policy: an exclusion without enough nodes left is the job's end, with the worker's code") {
  Script j(2, 10);
  j.settings.exclude_after = 1;
  j.join("1");
  j.join("2");
  fail_round(j, 1);
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<JobEnd>(name).exit_code == 3);
    CHECK_THAT(j.got<JobEnd>(name).reason, Contains("1 of 2 nodes are left"));
  }
}

TEST_CASE("Policy: a late node waits, or starts a new round at once") {
  Script j(1, 0);
  j.settings.max_nodes = 3;
  j.timeouts.last_call = 1s;
  SECTION("waits") {
    j.join("1");
    j.wait(1s);
    REQUIRE(j.round("1") == 1);
    j.join("2");
    CHECK(j.last<StopRound>("1") == nullptr);
    CHECK(j.last<Waiting>("2") != nullptr);
  }
  SECTION("starts a new round") {
    j.settings.restart_on_join = true;
    j.join("1");
    j.wait(1s);
    REQUIRE(j.round("1") == 1);
    j.join("2");
    CHECK_THAT(j.got<StopRound>("1").reason, Contains("--on-join=restart"));
    j.says("1", WorkersStopped{1, 1001});
    j.wait(1s);
    CHECK(j.round("2") == 2);
    CHECK(j.got<StartRound>("2").world_size == 2);
    CHECK(j.table.status().front().failures == 0);
  }
  SECTION("not when some have finished already") {
    j.settings.restart_on_join = true;
    j.join("1");
    j.join("2");
    j.wait(1s);
    REQUIRE(j.round("1") == 1);
    j.says("1", WorkersSucceeded{1});
    j.join("3");
    CHECK(j.last<StopRound>("2") == nullptr);
  }
}

TEST_CASE("Policy: surplus nodes beyond the spares are told how to get a job of their own") {
  Script j(1);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  CHECK_THAT(j.got<Waiting>("2").note, Contains("ready as spare (1 of 1)"));
  CHECK_THAT(j.got<Waiting>("3").note, Contains("for a new job give --rdzv-id"));
}

TEST_CASE("Policy: budgets and policies must agree") {
  Script j(2);
  j.join("1");
  const auto refusal = [&](auto change) {
    Join other = j.make_join("2");
    change(other.settings);
    j.agents["2"] = {};
    j.join("2", other);
    const auto* refused = j.last<Refused>("2");
    return refused ? refused->message : std::string("taken in");
  };
  CHECK_THAT(refusal([](JobSettings& s) { s.max_node_losses = 2; }), Contains("--max-node-losses"));
  CHECK_THAT(refusal([](JobSettings& s) { s.max_preemptions = 2; }), Contains("--max-preemptions"));
  CHECK_THAT(refusal([](JobSettings& s) { s.no_progress_restarts = 2; }),
             Contains("--no-progress-restarts"));
  CHECK_THAT(refusal([](JobSettings& s) { s.exclude_after = 2; }), Contains("--exclude-after"));
  CHECK_THAT(refusal([](JobSettings& s) { s.spares = 2; }), Contains("--spares"));
  CHECK_THAT(refusal([](JobSettings& s) { s.restart_on_join = true; }),
             Contains("--on-join is restart here, but wait on"));
}

WorkerRequest asks(WorkerRequest::Kind kind, std::uint64_t round = 1, int exit_code = 1) {
  return {round, kind, 5, "ECC errors", exit_code};
}

TEST_CASE("Policy: a worker asks to exclude its node, the round starts again without it") {
  Script j(2, 0);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  j.says("1", WorkersRunning{1});
  j.says("2", WorkersRunning{1});
  j.says("2", asks(WorkerRequest::Kind::kExcludeNode));
  CHECK_THAT(j.got<StopRound>("1").reason,
             Contains("node 1 (2, 10.0.0.2) is excluded: rank 5 asked for it: ECC errors"));
  j.fails("2", 1, 1);                                // the round ended right after
  j.says("1", asks(WorkerRequest::Kind::kStopJob));  // too late
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("2").exit_code == 75);
  CHECK_THAT(j.got<JobEnd>("2").reason, Contains("rank 5 asked for it: ECC errors"));
  REQUIRE(j.round("3") == 2);
  CHECK(j.last<JobEnd>("1") == nullptr);
  const JobStatus status = j.table.status().front();
  CHECK(status.failures == 0);
  CHECK(status.node_losses == 1);
  CHECK(status.excluded.begin()->second == "rank 5 asked for it: ECC errors");
}

TEST_CASE("Policy: an agent that finds its node unfit asks for the same, in its own name") {
  Script j(2, 0);
  j.settings.spares = 1;
  for (const char* name : {"1", "2", "3"}) j.join(name);
  WorkerRequest request = asks(WorkerRequest::Kind::kExcludeNode);
  request.global_rank = kAgentItself;
  request.reason = "its preflight failed: no room";
  j.says("2", request);  // none of its workers was started
  CHECK_THAT(j.got<StopRound>("1").reason,
             Contains("node 1 (2, 10.0.0.2) is excluded: its preflight failed: no room"));
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  REQUIRE(j.round("3") == 2);
  CHECK(j.got<JobEnd>("2").exit_code == 75);
}

TEST_CASE("Policy: a node that comes unfit is kept out at no cost, and all hear why") {
  Script j(2, 0);
  j.settings.max_node_losses = 0;
  Join unfit = j.make_join("1");
  unfit.unfit = "doctor: open_files: soft 1024";
  j.join("1", unfit);  // this is the first node, so the job waits for the others to tell them
  CHECK(j.got<Refused>("1").exit_code == 75);
  CHECK_THAT(j.got<Refused>("1").message,
             Contains("is excluded: its preflight failed: doctor: open_files: soft 1024"));
  CHECK(j.table.status().size() == 1);
  for (const char* name : {"2", "3"}) j.join(name);
  REQUIRE(j.round("2") == 1);
  for (const char* name : {"2", "3"}) j.says(name, WorkersRunning{1});
  for (const char* name : {"2", "3"}) j.says(name, WorkersSucceeded{1});
  CHECK(j.got<JobEnd>("3").exit_code == 0);
  REQUIRE(j.got<JobEnd>("3").excluded.size() == 1);
  CHECK_THAT(j.got<JobEnd>("3").excluded.front(),
             Contains("its preflight failed: doctor: open_files"));
}

TEST_CASE("Policy: nodes that come unfit under ever new names are noted down, 1024 at most") {
  Script j(2, 0);
  Join unfit = j.make_join("1");
  unfit.unfit = "no room";
  for (int i = 0; i < 1030; ++i) {
    unfit.host = concat("node", i);
    j.join(concat("n", i), unfit);
    CHECK(j.got<Refused>(concat("n", i)).exit_code == 75);
  }
  CHECK(j.table.status().front().excluded.size() == 1024);
}

TEST_CASE("Policy: a job of which only unfit nodes were heard is forgotten when its time is over") {
  Script j(2, 0);
  Join unfit = j.make_join("1");
  unfit.unfit = "no room";
  j.join("1", unfit);
  CHECK(j.table.status().size() == 1);
  j.wait(std::chrono::duration_cast<std::chrono::seconds>(unfit.timeouts.join) + 1s);
  CHECK(j.table.status().empty());
}

TEST_CASE("Policy: excluding nodes is bounded by --max-node-losses and by --nnodes") {
  Script j(2, 0);
  std::string expected;
  SECTION("no node left to take its place") { expected = "1 of 2 nodes are left"; }
  SECTION("the budget is used up") {
    j.settings.max_node_losses = 0;
    expected = "--max-node-losses is 0";
  }
  j.join("1");
  j.join("2");
  if (j.settings.max_node_losses == 0) j.join("3");
  j.says("2", asks(WorkerRequest::Kind::kExcludeNode));
  CHECK(j.last<JobEnd>("1") == nullptr);  // the workers end in order first
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<JobEnd>(name).exit_code == 75);
    CHECK_THAT(j.got<JobEnd>(name).reason, Contains(expected));
  }
}

TEST_CASE("Policy: a worker asks to stop the job, its code and reason are the job's") {
  Script j(2, 5);
  j.join("1");
  j.join("2");
  // A request of another round changes nothing.
  j.says("2", asks(WorkerRequest::Kind::kStopJob, 7, 9));
  CHECK(j.last<StopRound>("1") == nullptr);
  j.says("2", asks(WorkerRequest::Kind::kStopJob, 1, 9));
  REQUIRE(j.last<StopRound>("1") != nullptr);
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<JobEnd>(name).exit_code == 9);
    CHECK_THAT(j.got<JobEnd>(name).reason, Contains("asked to stop the job: ECC errors"));
  }
}

TEST_CASE("Policy: a node whose workers have finished asks for nothing any more") {
  Script j(2, 5);
  j.join("1");
  j.join("2");
  j.says("2", WorkersSucceeded{1});
  j.says("2", asks(WorkerRequest::Kind::kStopJob));
  CHECK(j.last<StopRound>("1") == nullptr);
}

TEST_CASE("Policy: rounds in a row without a finished step end the job with 76") {
  Script j(2, 10);
  j.settings.no_progress_restarts = 2;
  j.timeouts.max_restart_delay = 0ms;
  j.join("1");
  j.join("2");
  fail_round(j, 1);
  REQUIRE(j.round("1") == 2);
  j.says("1", WorkersRunning{2});
  j.says("2", WorkersRunning{2});
  j.says("1", FirstStep{2, 7});  // after some progress the count begins anew
  fail_round(j, 2);
  REQUIRE(j.round("1") == 3);
  fail_round(j, 3);
  REQUIRE(j.round("1") == 4);
  fail_round(j, 4);
  for (const char* name : {"1", "2"}) {
    CHECK(j.got<JobEnd>(name).exit_code == 76);
    CHECK_THAT(j.got<JobEnd>(name).reason,
               Contains("2 rounds in a row ended without a finished step "
                        "(--no-progress-restarts=2); the last one: rank") &&
                   Contains("failed with exit code 3"));
  }
}

TEST_CASE("Policy: lost nodes count as rounds without progress, a late node's restart doesn't") {
  Script j(1, 0);
  j.settings.max_nodes = 2;
  j.settings.no_progress_restarts = 1;
  j.settings.restart_on_join = true;
  j.timeouts.last_call = 0ms;
  j.join("1");
  j.wait(1ms);
  REQUIRE(j.round("1") == 1);
  j.join("2");
  j.says("1", WorkersStopped{1, 1001});
  REQUIRE(j.round("2") == 2);
  j.closes("2");
  j.wait(200ms);
  j.says("1", WorkersStopped{2, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 76);
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("was lost"));
}

TEST_CASE("Policy: the budget of restarts is named before the lack of progress") {
  Script j(2, 0);
  j.settings.no_progress_restarts = 1;
  j.join("1");
  j.join("2");
  fail_round(j, 1);
  CHECK(j.got<JobEnd>("1").exit_code == 3);
}

}  // namespace
}  // namespace ddprun::membership
