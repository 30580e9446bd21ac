// SPDX-License-Identifier: Apache-2.0
// The rules of docs/nodes.md, one by one.
#include "rendezvous/gangs/gang_queue.h"

#include "tests/rendezvous/gangs/queue_script.h"
#include "tests/support/catch.h"

namespace ddprun::gangs::testing {
namespace {

using Lines = std::vector<std::string>;
using Verdict = GangQueue::Verdict;

TEST_CASE("GangQueue: a gang begins on the first nodes by name that have room, together") {
  QueueScript script;
  script.came("n3", 4);
  script.came("n1", 4);
  CHECK(script.submit("a", 2, "4") == Verdict::kTaken);
  CHECK(script.state("a") == "running on n1 n3");
  CHECK(script.told() == Lines{"n1: start a 2x4", "n3: start a 2x4"});
  script.started("n1", "a");
  script.ended("n1", "a", 0);
  CHECK(script.state("a") == "running on n1 n3");
  script.ended("n3", "a", 0);
  CHECK(script.state("a") == "ended 0");
  CHECK(script.told() == Lines{"n1: forget a", "n3: forget a"});
}

TEST_CASE("GangQueue: slots are counted, and free when the agent says so") {
  QueueScript script;
  script.came("n1", 4);
  script.submit("a", 1, "3");
  script.submit("b", 1, "2");
  CHECK(script.state("a") == "running on n1");
  CHECK(script.state("b") == "queued");
  CHECK(script.queue.used_slots().at("n1") == 3);
  script.cancel("a");
  CHECK(script.state("b") == "queued");  // a is stopping, and has its slots meanwhile
  script.ended("n1", "a", 143);
  CHECK(script.state("b") == "running on n1");
}

TEST_CASE(
    "GangQueue: nobody overtakes a gang that would fit, and one that wouldn't holds nobody up") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 4);
  script.submit("runs", 1, "4");
  script.submit("large", 2, "4");
  script.submit("small", 1, "1");
  CHECK(script.state("small") == "queued");  // although n2 has room
  script.submit("never", 3, "4");
  script.ended("n1", "runs", 0);
  CHECK(script.state("large") == "running on n1 n2");
  script.ended("n1", "large", 0);
  CHECK(script.state("small") == "running on n1");
  script.submit("later", 1, "1");
  CHECK(script.state("later") == "running on n1");  // "never" holds nothing
  CHECK(script.queue.waits_for(*script.queue.find("never")) ==
        "waits for 3 nodes of alice with 4 slots free; only 2 nodes here could ever "
        "have so many");
}

TEST_CASE("GangQueue: a gang holds the nodes of its user alone") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 4, {}, "bob");
  script.submit("a", 1, "4");
  script.submit("b", 1, "4");  // this gang holds n1
  script.submit("of-bob", 1, "4", 0, "bob");
  CHECK(script.state("of-bob") == "running on n2");
  CHECK(script.state("b") == "queued");
}

TEST_CASE("GangQueue: agents of two users on one node share its slots") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n1", 4, {}, "bob");
  script.submit("a", 1, "3");
  script.submit("b", 1, "2", 0, "bob");
  CHECK(script.state("b") == "queued");
  script.ended("n1", "a", 0);
  CHECK(script.state("b") == "running on n1");
  CHECK(script.told().back() == "bob@n1: start b 1x2");
}

TEST_CASE("GangQueue: whole nodes, and as many nodes as are free up to the most") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 8);
  script.came("n3", 2);
  script.submit("one", 1, "1");  // this gang runs on n1
  script.submit("whole", 1, "gpu", 4);
  CHECK(script.state("whole") == "running on n2 n3");
  CHECK(script.queue.used_slots().at("n2") == 8);
  CHECK(script.told().back() == "n3: start whole 1:2xgpu");
}

TEST_CASE("GangQueue: a node that comes back in time goes on, or is told again what it missed") {
  QueueScript script;
  script.came("n1", 4);
  script.submit("a", 1, "1");
  script.submit("b", 1, "1");
  script.submit("c", 1, "1");
  script.started("n1", "a");
  script.told();
  script.gone("n1");
  script.submit("d", 1, "1");
  CHECK(script.state("d") == "queued");  // n1 is away
  script.cancel("c");
  script.pass(59s);
  script.came("n1", 4, {{"a", 1, false, 0, ""}});
  CHECK(script.told() == Lines{"n1: start b 1x1", "n1: start d 1x1"});
  CHECK(script.state("c") == "ended 143");  // c had not begun
  script.gone("n1");
  script.came("n1", 4, {{"a", 1, true, 5, ""}, {"b", 1, false, 0, ""}});
  CHECK(script.state("a") == "ended 5");
  CHECK(script.told() == Lines{"n1: forget a", "n1: start d 1x1"});
}

TEST_CASE("GangQueue: an agent that was killed has lost its gangs") {
  QueueScript script;
  script.came("n1", 4);
  script.submit("a", 1, "4");
  script.started("n1", "a");
  script.gone("n1");
  script.came("n1", 4, {}, "alice", "2");
  CHECK(script.state("a") == "ended 75");
  CHECK(script.queue.find("a")->state.reason == "n1: its agent was started anew");
}

TEST_CASE("GangQueue: a node that is away for too long is lost, and stops what it still has") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 4);
  script.submit("a", 2, "4");
  script.started("n1", "a");
  script.started("n2", "a");
  script.gone("n1");
  script.pass(60s);
  CHECK(script.state("a") == "running on n1 n2");  // the job's own rendezvous decides
  script.ended("n2", "a", 75);
  CHECK(script.state("a") == "ended 75");
  script.submit("b", 2, "4");
  script.told();
  script.came("n1", 4, {{"a", 4, false, 0, ""}});
  CHECK(script.told() == Lines{"n1: stop a"});
  CHECK(script.state("b") == "queued");  // the slots are still taken
  script.ended("n1", "a", 143);
  CHECK(script.state("b") == "running on n1 n2");
  CHECK(script.state("a") == "ended 75");
}

TEST_CASE(
    "GangQueue: a part that could not start stops the others at once, a lost one after a while") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 4);
  script.submit("a", 2, "2");
  script.submit("b", 2, "2");
  script.told();
  script.ended("n1", "a", 2, "there is no directory /home/alice");
  CHECK(script.told() == Lines{"n2: stop a", "n1: forget a"});
  script.ended("n2", "a", 143);
  CHECK(script.state("a") == "ended 2");
  CHECK(script.queue.find("a")->state.reason == "n1: there is no directory /home/alice");
  script.told();
  script.ended("n1", "b", 9);
  CHECK(script.told() == Lines{"n1: forget b"});
  script.pass(60s);
  CHECK(script.told() == Lines{"n2: stop b"});
  script.ended("n2", "b", 143);
  CHECK(script.state("b") == "ended 9");
}

TEST_CASE("GangQueue: a job that succeeds on one node has succeeded") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 4);
  script.submit("a", 1, "4", 2);
  script.started("n1", "a");
  script.gone("n1");
  script.pass(60s);
  script.ended("n2", "a", 0);
  CHECK(script.state("a") == "ended 0");
  CHECK(script.queue.find("a")->state.reason.empty());
}

TEST_CASE("GangQueue: a job that succeeded is told what became of its output") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n2", 4);
  script.submit("a", 2, "4");
  script.ended("n1", "a", 0);
  script.ended("n2", "a", 0, "what it printed may be lost");
  CHECK(script.state("a") == "ended 0");
  CHECK(script.queue.find("a")->state.reason == "n2: what it printed may be lost");
  script.submit("b", 2, "4");
  script.ended("n1", "b", 0, "what it printed may be lost");
  script.ended("n2", "b", 0);
  CHECK(script.queue.find("b")->state.reason == "n1: what it printed may be lost");
}

TEST_CASE(
    "GangQueue: the same submission again is the same gang, another one with its id is refused") {
  QueueScript script;
  CHECK(script.submit("a", 1, "4") == Verdict::kTaken);
  CHECK(script.submit("a", 1, "4") == Verdict::kKnown);
  CHECK(script.submit("a", 2, "4") == Verdict::kOther);
  CHECK(script.queue.gangs().size() == 1);
  CHECK_FALSE(script.cancel("b"));
}

TEST_CASE("GangQueue: the number of gangs is limited, and those that are over are forgotten") {
  GangQueueOptions options;
  options.max_gangs = 2;
  QueueScript script(options);
  script.submit("a", 1, "1");
  script.submit("b", 1, "1");
  CHECK(script.submit("c", 1, "1") == Verdict::kFull);
  script.cancel("a");
  CHECK(script.state("a") == "ended 143");
  CHECK(script.submit("c", 1, "1") == Verdict::kTaken);
  script.pass(1h);
  CHECK(script.state("a") == "forgotten");
  script.keep();
  for (const auto& [key, row] : script.rows) CHECK(key.find("gangs/1/") == std::string::npos);
}

TEST_CASE("GangQueue: no user fills more than a share of the queue") {
  GangQueueOptions options;
  options.max_gangs = 4;
  options.max_gangs_of_owner = 2;
  options.max_bytes_of_owner = 4096;
  QueueScript script(options);
  CHECK(script.submit("a", 1, "1") == Verdict::kTaken);
  GangSpec large = QueueScript::spec("large", 1, "1");
  large.arguments.emplace_back(4096, 'x');
  GangActions none;
  CHECK(script.queue.submit(large, "alice", script.time(), none) == Verdict::kFullOfOwner);
  CHECK(script.submit("b", 1, "1") == Verdict::kTaken);
  CHECK(script.submit("c", 1, "1") == Verdict::kFullOfOwner);
  CHECK(script.submit("c", 1, "1", 0, "bob") == Verdict::kTaken);
  script.cancel("a");
  CHECK(script.submit("d", 1, "1") == Verdict::kTaken);
}

TEST_CASE("GangQueue: a second agent of one name is refused while the first one is heard") {
  QueueScript script;
  script.came("n1", 4);
  script.came("n1", 4, {}, "alice", "2");
  CHECK(script.told() == Lines{"n1: refused", "n1: closed"});
  script.came("n1", 4);  // the same agent, whose old connection is still open
  CHECK(script.told() == Lines{"n1: closed"});
  CHECK(script.queue.nodes().size() == 1);
}

TEST_CASE("GangQueue: it is as it was after a restart, in the same order") {
  QueueScript script;
  script.came("n1", 4);
  script.submit("runs", 1, "4");
  script.started("n1", "runs");
  script.submit("given", 1, "4");
  script.submit("next", 1, "4");
  script.restart();
  CHECK(script.state("runs") == "running on n1");
  CHECK(script.state("given") == "queued");
  script.submit("last", 1, "1");
  script.came("n1", 4, {{"runs", 4, true, 0, ""}});
  CHECK(script.state("runs") == "ended 0");
  CHECK(script.state("given") == "running on n1");
  CHECK(script.state("last") == "queued");
  script.keep();
  CHECK_FALSE(script.rows.contains("gangs/1/spec"));  // the spec has the environment
  CHECK(script.rows.contains("gangs/1/state"));
  script.restart();
  script.pass(60s);
  CHECK(script.state("given") == "ended 75");
}

TEST_CASE("GangQueue: rows that are damaged lose what they had, and no more") {
  QueueScript script;
  script.submit("a", 1, "1");
  script.submit("b", 1, "1");
  script.submit("c", 1, "1");
  script.keep();
  script.rows["gangs/1/state"] = "{";
  script.rows.erase("gangs/2/spec");
  script.restart();
  CHECK(script.state("a") == "forgotten");
  CHECK(script.state("b") == "ended 75");
  CHECK(script.state("c") == "queued");
}

TEST_CASE("Gang: an invalid gang is refused with the field's name") {
  const GangSpec good = QueueScript::spec("a", 1, "4");
  CHECK(check_spec(good).empty());
  const auto wrong = [&](auto change) {
    GangSpec spec = good;
    change(spec);
    return check_spec(spec);
  };
  using ddprun::test::Contains;
  CHECK_THAT(wrong([](auto& spec) { spec.id = "../x"; }), Contains("\"id\""));
  CHECK_THAT(wrong([](auto& spec) { spec.user = ""; }), Contains("\"user\""));
  CHECK_THAT(wrong([](auto& spec) { spec.min_nodes = 0; }), Contains("\"min_nodes\""));
  CHECK_THAT(wrong([](auto& spec) { spec.min_nodes = 2; }), Contains("\"min_nodes\""));
  CHECK_THAT(wrong([](auto& spec) { spec.workers = "0"; }), Contains("\"workers\""));
  CHECK_THAT(wrong([](auto& spec) { spec.workers = "4x"; }), Contains("\"workers\""));
  CHECK_THAT(wrong([](auto& spec) { spec.arguments.clear(); }), Contains("\"arguments\""));
  CHECK_THAT(wrong([](auto& spec) { spec.environment = {"=x"}; }), Contains("\"environment\""));
  CHECK_THAT(wrong([](auto& spec) { spec.directory = "here"; }), Contains("\"directory\""));
  CHECK_THAT(wrong([](auto& spec) { spec.stop_ms = -1; }), Contains("\"stop_ms\""));
}

}  // namespace
}  // namespace ddprun::gangs::testing
