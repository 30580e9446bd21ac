// SPDX-License-Identifier: Apache-2.0
// A node's life: joins, waits, ends.
#include <csignal>

#include "tests/agent/link/agent_node.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;

TEST_CASE("AgentMachine: connects, binds the store, joins, spawns, ends") {
  AgentNode node;
  node(agent_event::Start{});
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  CHECK(node.bound == std::vector<std::string>{"10.0.0.2"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->store_port == 4000);
  node.welcome();
  CHECK(node.last<agent_action::SetKeepAlive>()->timeout == 5s);
  node.start(1);
  CHECK(node.last<agent_action::ServeStore>()->round == 1);
  CHECK(node.last<agent_action::Spawn>()->round.round == 1);
  node(agent_event::WorkersRunning{1});
  CHECK(node.said<WorkersRunning>() != nullptr);
  node(agent_event::WorkersSucceeded{1});
  CHECK(node.said<WorkersSucceeded>() != nullptr);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  node.hear(JobEnd{0, "", {}, 1});
  CHECK(node.said<Ack>() != nullptr);
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  node(agent_event::WorkersGone{1});
  CHECK(node.last<agent_action::CloseStore>() != nullptr);
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 0);
  CHECK_FALSE(node.last<agent_action::Exit>()->local);
  CHECK(node.machine->exited());
}

TEST_CASE("AgentMachine: a store whose address is loopback is for this machine alone") {
  for (const auto& [address, is_for_loopback] :
       {std::pair{"127.0.0.1", true}, {"::1", true}, {"localhost", true}, {"10.0.0.1", false}}) {
    CAPTURE(address);
    AgentNode node;
    node.join();
    StartRound start;
    start.round = 1;
    start.serve_store = true;
    start.master_addr = address;
    node.hear(start);
    REQUIRE(node.last<agent_action::ServeStore>() != nullptr);
    CHECK(node.last<agent_action::ServeStore>()->is_for_loopback == is_for_loopback);
  }
}

TEST_CASE("AgentMachine: says which nodes it waits for when that takes longer than 2 s") {
  AgentNode node;
  node.join();
  node.hear(Waiting{1, 2, "", false}, false);
  CHECK(node.last<agent_action::Tell>() == nullptr);
  SECTION("nobody comes") {
    node.pass(2s);
    REQUIRE(node.last<agent_action::Tell>() != nullptr);
    CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("1 of 2"));
  }
  SECTION("the others come at once") {
    node.start(1);
    node.pass(2s);
    CHECK(node.last<agent_action::Tell>() == nullptr);
  }
  SECTION("a hint beside the counts waits as they do") {
    node.hear(Waiting{1, 2, "another job waits, too", false}, false);
    CHECK(node.last<agent_action::Tell>() == nullptr);
    node.pass(2s);
    REQUIRE(node.last<agent_action::Tell>() != nullptr);
    CHECK(node.last<agent_action::Tell>()->text == "another job waits, too");
  }
  SECTION("a note is told at once") {
    node.hear(Waiting{0, 0, "waiting as spare", true}, false);
    CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("spare"));
  }
}

TEST_CASE(
    "AgentMachine: pings come as often as asked, and never less than twice a keep-alive time") {
  using namespace std::chrono_literals;
  const auto interval = [](std::chrono::milliseconds wish, std::chrono::milliseconds keep_alive) {
    AgentNode node;
    node.options.keep_alive_interval = wish;
    node.begin();
    node.say_join();
    Welcome welcome;
    welcome.session = "s";
    welcome.keep_alive = keep_alive;
    node.hear(welcome, false);
    return node.last<agent_action::SetKeepAlive>()->interval;
  };
  CHECK(interval(0ms, 6s) == 2s);
  CHECK(interval(500ms, 6s) == 500ms);
  CHECK(interval(3s, 6s) == 3s);
  CHECK(interval(4s, 6s) == 2s);
}

TEST_CASE(
    "AgentMachine: started by a worker of its own job it is no spare: it would wait for ever") {
  AgentNode node;
  node.options.in_own_job = true;
  node.begin();
  node.join();
  node.hear(Waiting{1, 2, "", false}, false);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  node.hear(Waiting{0, 0, "waiting as spare", true}, false);
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 2);
  CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason,
             Contains("a worker of job job started this ddprun"));
}

TEST_CASE(
    "AgentMachine: the store of several nodes listens on all interfaces, also over loopback") {
  AgentNode node;
  node(agent_event::Start{});
  node(agent_event::LinkUp{"127.0.0.1", "127.0.0.1"});
  CHECK(node.bound == std::vector<std::string>{""});
}

TEST_CASE("AgentMachine: an address in front of this node can't be bound, all interfaces can") {
  AgentNode node;
  node.options.join.advertised_addr = "203.0.113.1";
  node.no_port = "cannot assign the address";
  node.begin();
  node(agent_event::Start{});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  CHECK(node.bound == std::vector<std::string>{"203.0.113.1", ""});
  CHECK(node.last<agent_action::Exit>()->verdict.reason ==
        "can't serve the round's store: cannot assign the address");
}

TEST_CASE("AgentMachine: the first signal stops in order, the second by force") {
  AgentNode node;
  node.run();
  node(agent_event::Signal{SIGINT});
  REQUIRE(node.said<Leave>() != nullptr);
  CHECK(node.said<Leave>()->exit_code == 130);
  CHECK(node.last<agent_action::StopWorkers>()->grace == 30s);
  CHECK(node.last<agent_action::StopWorkers>()->signal_number == SIGINT);
  const bool is_users = GENERATE(true, false), is_late = GENERATE(true, false);
  node.now += is_late ? 2s : 100ms;
  node(agent_event::Signal{SIGINT, is_users});
  CHECK(node.said<Leave>()->everyone == (is_users && is_late));
  CHECK(node.last<agent_action::StopWorkers>()->grace == 0s);
  node(agent_event::WorkersGone{1});
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 130);
}

TEST_CASE("AgentMachine: the first signal in a job that has ended leaves its workers their grace") {
  AgentNode node;
  node.run();
  node.hear(JobEnd{130, "another node got the same Ctrl-C", {}, 1});
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  node.actions.clear();
  node(agent_event::Signal{SIGINT});
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  node(agent_event::Signal{SIGINT});
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>()->grace == 0s);
}

TEST_CASE("AgentMachine: it waits for the end after Leave, but not for ever") {
  AgentNode node;
  node.run();
  node(agent_event::Signal{SIGTERM});
  node(agent_event::WorkersGone{1});
  CHECK(node.last<agent_action::Exit>() == nullptr);
  SECTION("the end comes: its code is the job's") {
    node.hear(JobEnd{7, "another was first", {}, 1});
    CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 7);
  }
  SECTION("it does not come") {
    node.pass(2s);
    CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 143);
  }
}

TEST_CASE("AgentMachine: an abandoned agent leaves alone, and stops its workers in order") {
  AgentNode node;
  node.run();
  node(agent_event::Abandoned{"nobody is there", SIGINT});
  REQUIRE(node.said<Leave>() != nullptr);
  CHECK((node.said<Leave>()->alone && node.said<Leave>()->exit_code == 75));
  CHECK(node.last<agent_action::StopWorkers>()->grace == 30s);
  CHECK(node.last<agent_action::StopWorkers>()->signal_number == SIGINT);
  node(agent_event::WorkersGone{1});
  node.pass(2s);
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
}

TEST_CASE("AgentMachine: a signal before anything was joined just exits") {
  AgentNode node;
  node(agent_event::Start{});
  node(agent_event::Signal{SIGTERM});
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 143);
}

TEST_CASE("AgentMachine: every wait of its own has a deadline") {
  AgentNode node;
  SECTION("Welcome") {
    node.say_join();
    node.pass(30s);
    CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason, Contains("did not answer"));
  }
  SECTION("WorkersGone") {
    node.run();
    node.hear(JobEnd{0, "", {}, 1});
    node.pass(node.options.join.timeouts.shutdown + kWorkersGoneMargin);
    CHECK(node.last<agent_action::Exit>() != nullptr);
  }
}

TEST_CASE(
    "AgentMachine: the last step times are said again on a new link, other words about ranks "
    "aren't") {
  AgentNode node;
  node.run();
  node(agent_event::WorkersRunning{1});
  for (int i = 0; i < 1000; ++i) {
    node(agent_event::StepsTimed{1, {}});
    node(agent_event::RankStalled{1, {}});
    node(agent_event::RanksInspected{1, 1, {}});
  }
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.actions.clear();
  node.welcome();
  CHECK(node.said<WorkersRunning>() != nullptr);
  CHECK(node.said<StepTimes>() != nullptr);
  CHECK(std::count_if(node.actions.begin(), node.actions.end(), [](const AgentAction& action) {
          return variants::holds_alternative<agent_action::Send>(action);
        }) == 2);
}

TEST_CASE("AgentMachine: warned before any rendezvous took it in, it ends with 75 or 124") {
  for (const auto kind : {Preempted::Kind::kNode, Preempted::Kind::kTimeLimit}) {
    AgentNode node;
    node(agent_event::Start{});
    node(agent_event::Warned{kind, "got SIGUSR1", 60s});
    REQUIRE(node.last<agent_action::Exit>() != nullptr);
    CHECK(node.last<agent_action::Exit>()->verdict.exit_code ==
          (kind == Preempted::Kind::kNode ? 75 : 124));
  }
}

}  // namespace
}  // namespace ddprun::membership
