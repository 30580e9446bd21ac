// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/agent_machine.h"

#include <algorithm>
#include <csignal>

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;

// The machine with what it did last; the rendezvous' side is numbered here.
struct Node {
  explicit Node(const std::string& backend = "c10d") {
    options.join.run_id = "job";
    options.join.instance = "i";
    options.join.settings.min_nodes = options.join.settings.max_nodes = 2;
    options.join.settings.rdzv_backend = backend;
    options.endpoint = Endpoint{.host = "head", .port = 29500};
    machine = std::make_unique<AgentMachine>(options);
  }
  void operator()(const AgentEvent& event) {
    for (auto& action : machine->step(event, now)) actions.push_back(std::move(action));
  }
  void hear(RendezvousMessage message, bool numbered = true) {
    const std::uint64_t seq = numbered ? ++pushed : 0;
    (*this)(agent_event::LinkMessage{{seq, 0, std::move(message)}});
  }
  void welcome(bool embedded = false) {
    Welcome message;
    message.session = "s";
    message.embedded = embedded;
    hear(message, false);
  }
  void run() {  // up to live workers of round 1
    (*this)(agent_event::Start{});
    (*this)(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    (*this)(agent_event::StoreBound{4000});
    welcome();
    start(1);
  }
  void start(std::uint64_t round) {
    StartRound message;
    message.round = round;
    message.serve_store = true;
    hear(message);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    if (machine->next_deadline() && *machine->next_deadline() <= now) (*this)(agent_event::Timer{});
  }

  // The last action of this kind since clear(), or null.
  template <typename Action>
  const Action* last() const {
    const Action* found = nullptr;
    for (const auto& action : actions) {
      if (const auto* match = std::get_if<Action>(&action)) found = match;
    }
    return found;
  }
  template <typename Message>
  const Message* said() const {
    const Message* found = nullptr;
    for (const auto& action : actions) {
      const auto* send = std::get_if<agent_action::Send>(&action);
      if (send == nullptr) continue;
      if (const auto* match = std::get_if<Message>(&send->envelope.message)) found = match;
    }
    return found;
  }

  AgentOptions options;
  std::unique_ptr<AgentMachine> machine;
  std::vector<AgentAction> actions;
  Clock::time_point now{1h};
  std::uint64_t pushed = 0;
};

TEST_CASE("AgentMachine: connects, binds the store, joins, spawns, ends") {
  Node node;
  node(agent_event::Start{});
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.last<agent_action::BindStore>() != nullptr);
  CHECK(node.last<agent_action::BindStore>()->address == "10.0.0.2");
  CHECK(node.said<Join>() == nullptr);
  node(agent_event::StoreBound{4000});
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

TEST_CASE("AgentMachine: says which nodes it waits for when that takes longer than 2 s") {
  Node node;
  node(agent_event::Start{});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node(agent_event::StoreBound{4000});
  node.welcome();
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
    Node node;
    node.options.keep_alive_interval = wish;
    node.machine = std::make_unique<AgentMachine>(node.options);
    node(agent_event::Start{});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node(agent_event::StoreBound{4000});
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

TEST_CASE("AgentMachine: a spare starts its workers ahead, once for each round it may get") {
  Node node;
  node.options.prewarm = GENERATE(true, false);
  node.machine = std::make_unique<AgentMachine>(node.options);
  node(agent_event::Start{});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node(agent_event::StoreBound{4000});
  node.welcome();
  node.hear(Waiting{1, 2, "", false}, false);
  CHECK(node.last<agent_action::Prewarm>() == nullptr);
  node.hear(Waiting{0, 0, "ready as spare", true}, false);
  CHECK((node.last<agent_action::Prewarm>() != nullptr) == node.options.prewarm);
  node.actions.clear();
  node.hear(Waiting{0, 0, "ready as spare, again", true}, false);
  CHECK(node.last<agent_action::Prewarm>() == nullptr);
  node.start(3);
  REQUIRE(node.last<agent_action::Spawn>() != nullptr);
  node.hear(Waiting{0, 0, "late", true}, false);  // its workers live
  CHECK(node.last<agent_action::Prewarm>() == nullptr);
}

TEST_CASE("AgentMachine: over loopback with several nodes the store listens on all interfaces") {
  Node node;
  node(agent_event::Start{});
  node(agent_event::LinkUp{"127.0.0.1", "127.0.0.1"});
  CHECK(node.last<agent_action::BindStore>()->address.empty());
}

TEST_CASE("AgentMachine: a failed worker is told once, workers run on until StopRound") {
  Node node;
  node.run();
  agent_event::WorkerFailed failed{1, {}};
  failed.failure.exit_code = 3;
  node(failed);
  REQUIRE(node.said<WorkerFailed>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  node.actions.clear();
  node(failed);
  CHECK(node.said<WorkerFailed>() == nullptr);
  node.hear(StopRound{1, "why"});
  CHECK(node.last<agent_action::StopWorkers>()->grace == 30s);
  node(agent_event::WorkersGone{1});
  // Other nodes' workers may not be gone yet.
  CHECK(node.last<agent_action::CloseStore>() == nullptr);
  REQUIRE(node.last<agent_action::BindStore>() != nullptr);
  CHECK(node.said<WorkersStopped>() == nullptr);  // not before the next listener is bound
  node(agent_event::StoreBound{4001});
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->store_port == 4001);
  node.start(2);
  CHECK(node.last<agent_action::CloseStore>()->round == 1);
  CHECK(node.last<agent_action::Spawn>()->round.round == 2);
}

TEST_CASE("AgentMachine: events of an old round change nothing") {
  Node node;
  node.run();
  node.actions.clear();
  node(agent_event::WorkersGone{0});
  node(agent_event::WorkersSucceeded{2});
  node.hear(StopRound{7, "another"});
  CHECK(node.actions.empty());
}

TEST_CASE("AgentMachine: a lost link keeps the workers and resends what was not confirmed") {
  Node node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  CHECK(node.last<agent_action::Connect>()->timeout == 60s);
  node.actions.clear();
  node(agent_event::WorkersSucceeded{1});
  CHECK(node.said<WorkersSucceeded>() == nullptr);
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->session == "s");
  node.welcome();
  CHECK(node.said<WorkersSucceeded>() != nullptr);
}

TEST_CASE("AgentMachine: without link a failed worker ends the round here") {
  Node node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::WorkerFailed{1, {}});
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
}

TEST_CASE("AgentMachine: refused by a rendezvous that ends, it joins the next one as a new node") {
  Node node;
  node(agent_event::Start{});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node(agent_event::StoreBound{4000});
  const bool was_taken_in = GENERATE(false, true);
  if (was_taken_in) node.welcome(true);
  node.actions.clear();
  node.hear(Refused{"it ends", 75, true}, false);
  CHECK(node.last<agent_action::CloseLink>() != nullptr);
  REQUIRE(node.last<agent_action::Connect>() != nullptr);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("it ends; trying again"));
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  REQUIRE(node.said<Join>() != nullptr);
  CHECK(node.said<Join>()->session.empty());
  CHECK(node.said<Join>()->store_port == 4000);
  // But not for ever.
  node.now += node.options.connect_timeout;
  node.hear(Refused{"it ends", 75, true}, false);
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
}

TEST_CASE("AgentMachine: silence fences: the workers stop at once") {
  Node node;
  node.run();
  node(agent_event::LinkDown{true, "silence"});
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  CHECK(node.last<agent_action::StopWorkers>()->grace == kFenceGrace);
  CHECK(node.last<agent_action::Exit>() == nullptr);
  node(agent_event::WorkersGone{1});
  node(agent_event::StoreBound{4001});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.hear(Refused{"given up as lost", 75}, false);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 75);
}

TEST_CASE("AgentMachine: workers live on a lease that the rendezvous' answers renew") {
  Node node;
  node.run();
  const auto until = [&] { return node.last<agent_action::Lease>()->until; };
  CHECK(until() == node.now + 5s + kFenceGrace);
  const Clock::time_point pinged = node.now + 1s;
  node.pass(2s);
  node(agent_event::LinkAnswered{pinged});
  CHECK(until() == pinged + 5s + kFenceGrace);
  node(agent_event::LinkAnswered{pinged - 500ms});  // late: shortens nothing
  CHECK(until() == pinged + 5s + kFenceGrace);
  SECTION("an ended connection is no silence") {
    node(agent_event::LinkDown{false, "reset"});
    CHECK(until() == std::nullopt);
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node.welcome();
    CHECK(until() == node.now + 5s + kFenceGrace);
  }
  SECTION("workers that are being stopped keep theirs: the grace may be longer") {
    node.hear(StopRound{1, "why"});
    node(agent_event::LinkAnswered{node.now});
    CHECK(until() == node.now + 5s + kFenceGrace);
  }
  SECTION("at the job's end nobody takes their ranks") {
    node.hear(JobEnd{1, "why", {}, 1});
    CHECK(until() == std::nullopt);
    node(agent_event::LinkAnswered{node.now});
    CHECK(until() == std::nullopt);
  }
  SECTION("it runs out") {
    node(agent_event::WorkersFenced{1});
    CHECK_THAT(node.last<agent_action::Tell>()->text, Contains("stood still"));
    CHECK(node.last<agent_action::StopWorkers>()->grace == 0s);
    node(agent_event::WorkersGone{1});
    node(agent_event::StoreBound{4001});
    CHECK(node.said<WorkersStopped>() != nullptr);
    CHECK(node.said<WorkerFailed>() == nullptr);
  }
}

TEST_CASE("AgentMachine: a failure is dated by the rendezvous' clock, once that is known") {
  Node node;
  node.run();
  WorkerFailure failure;
  failure.exit_code = 3;
  const Clock::time_point death = node.now + 100ms;
  SECTION("known") {
    node(agent_event::ClockSampled{node.now, 7'000'001ms, node.now + 2ms});
    node.pass(1s);
    node(agent_event::WorkerFailed{1, failure, death});
    REQUIRE(node.said<WorkerFailed>() != nullptr);
    CHECK(node.said<WorkerFailed>()->failure.died_at_us == 7'000'100'000);
    CHECK(node.said<WorkerFailed>()->failure.clock_error_us >= 1000);
    CHECK(node.said<WorkerFailed>()->failure.clock_error_us < 1100);
  }
  SECTION("known from the welcome") {
    node(agent_event::LinkDown{false, "reset"});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node.now += 80ms;
    Welcome welcome;
    welcome.session = "s";
    welcome.clock_us = 5'000'000;
    node.hear(welcome, false);
    node(agent_event::WorkerFailed{1, failure, node.now});
    CHECK(node.said<WorkerFailed>()->failure.died_at_us == 5'040'000);
    CHECK(node.said<WorkerFailed>()->failure.clock_error_us == 40'008);
  }
  SECTION("not known") {
    node(agent_event::WorkerFailed{1, failure, death});
    CHECK(node.said<WorkerFailed>()->failure.died_at_us == 0);
  }
  SECTION("a failure from before the stop, seen after it, is said before the workers are gone") {
    node.hear(StopRound{1, "another rank"});
    node(agent_event::WorkerFailed{1, failure, death});
    CHECK(node.said<WorkerFailed>() != nullptr);
    node(agent_event::WorkersGone{1});
    node(agent_event::StoreBound{4001});
    CHECK(node.said<WorkersStopped>() != nullptr);
  }
}

TEST_CASE("AgentMachine: a rendezvous that is gone for good ends the node with 69") {
  Node node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::LinkFailed{"can't reach it"});
  node(agent_event::WorkersGone{1});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
  CHECK(node.last<agent_action::Exit>()->local);
}

TEST_CASE("AgentMachine: a rendezvous that ends every connection is given up at the deadline") {
  Node node;
  node.run();
  for (int i = 0; i < 100 && node.last<agent_action::Exit>() == nullptr; ++i) {
    node(agent_event::LinkDown{false, "closed"});
    node.now += 1s;
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node(agent_event::WorkersGone{1});
  }
  CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason, Contains("ends every connection"));
}

TEST_CASE("AgentMachine: a rendezvous that never takes a message is given up") {
  Node node;
  node.run();
  node(agent_event::WorkersRunning{1});
  const auto comes_back = [&](std::uint64_t taken) {
    node(agent_event::LinkDown{false, "closed"});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    Welcome welcome;
    welcome.session = "s";
    node(agent_event::LinkMessage{{0, taken, welcome}});
  };
  for (int i = 0; i < 3; ++i) comes_back(0);
  comes_back(1);  // taken after all
  node(agent_event::FirstStepDone{{1, 7}});
  for (int i = 0; i < 3; ++i) comes_back(1);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  comes_back(1);
  REQUIRE(node.last<agent_action::StopWorkers>() != nullptr);
  node(agent_event::WorkersGone{1});
  REQUIRE(node.last<agent_action::Exit>() != nullptr);
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 69);
  CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason,
             Contains("ended 3 connections in a row without taking message 2"));
}

TEST_CASE("AgentMachine: the first signal stops in order, the second by force") {
  Node node;
  node.run();
  node(agent_event::Signal{SIGINT});
  REQUIRE(node.said<Leave>() != nullptr);
  CHECK(node.said<Leave>()->exit_code == 130);
  CHECK(node.last<agent_action::StopWorkers>()->grace == 30s);
  node(agent_event::Signal{SIGINT});
  CHECK(node.last<agent_action::StopWorkers>()->grace == 0s);
  node(agent_event::WorkersGone{1});
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 130);
}

TEST_CASE("AgentMachine: after Leave it waits for the end, but not for ever") {
  Node node;
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

TEST_CASE("AgentMachine: a signal before anything was joined just exits") {
  Node node;
  node(agent_event::Start{});
  node(agent_event::Signal{SIGTERM});
  CHECK(node.last<agent_action::Exit>()->verdict.exit_code == 143);
}

TEST_CASE("AgentMachine: every wait of its own has a deadline") {
  Node node;
  SECTION("Welcome") {
    node(agent_event::Start{});
    node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
    node(agent_event::StoreBound{4000});
    node.pass(30s);
    CHECK_THAT(node.last<agent_action::Exit>()->verdict.reason, Contains("did not answer"));
  }
  SECTION("WorkersGone") {
    node.run();
    node.hear(JobEnd{0, "", {}, 1});
    node.pass(40s);
    CHECK(node.last<agent_action::Exit>() != nullptr);
  }
}

TEST_CASE("AgentMachine: static mode gives the workers the endpoint as typed") {
  Node node("static");
  node(agent_event::Start{});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  CHECK(node.last<agent_action::BindStore>() == nullptr);
  REQUIRE(node.said<Join>() != nullptr);
  node.welcome();
  StartRound start;
  start.round = 1;
  node.hear(start);
  CHECK(node.last<agent_action::Spawn>()->round.master_addr == "head");
  CHECK(node.last<agent_action::Spawn>()->round.master_port == 29500);
}

TEST_CASE("AgentMachine: inspects the ranks of its round when asked, and says what was found") {
  Node node;
  node.run();
  node.hear(Inspect{7});
  CHECK(node.last<agent_action::Inspect>() == nullptr);
  node.hear(Inspect{1, 4});
  REQUIRE(node.last<agent_action::Inspect>() != nullptr);
  CHECK(node.last<agent_action::Inspect>()->round == 1);
  CHECK(node.last<agent_action::Inspect>()->inquiry == 4);
  RankReport report;
  report.global_rank = 3;
  node(agent_event::RanksInspected{1, 4, {report}});
  REQUIRE(node.said<Inspection>() != nullptr);
  CHECK(node.said<Inspection>()->ranks[0].global_rank == 3);
  CHECK(node.said<Inspection>()->inquiry == 4);
  node(agent_event::RankStalled{1, report});
  CHECK(node.said<Stalled>() != nullptr);
  node(agent_event::StepsTimed{1, {}});
  CHECK(node.said<StepTimes>() != nullptr);
  node.hear(HangVerdict{1, "hang: …", {"state S"}});
  CHECK(node.last<agent_action::Tell>()->text == "  state S");
}

TEST_CASE("AgentMachine: keeps no report of ranks for a link that is down, or of an old round") {
  Node node;
  node.run();
  node(agent_event::LinkDown{false, "reset"});
  node(agent_event::RankStalled{1, {}});
  node(agent_event::RanksInspected{1, 1, {}});
  node(agent_event::LinkUp{"10.0.0.2", "10.0.0.1"});
  node.welcome();
  node(agent_event::RankStalled{2, {}});
  CHECK(node.said<Stalled>() == nullptr);
  CHECK(node.said<Inspection>() == nullptr);
}

TEST_CASE(
    "AgentMachine: what is said of ranks is not kept: a healthy rendezvous confirms nothing") {
  Node node;
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
  CHECK(std::count_if(node.actions.begin(), node.actions.end(), [](const AgentAction& action) {
          return std::holds_alternative<agent_action::Send>(action);
        }) == 1);
}

TEST_CASE("AgentMachine: a worker's request is handed on while its round lives") {
  Node node;
  node.run();
  node(agent_event::WorkerAsks{{7, WorkerRequest::Kind::kStopJob, 0, "another round's", 3}});
  CHECK(node.said<WorkerRequest>() == nullptr);
  node(agent_event::WorkerAsks{{1, WorkerRequest::Kind::kExcludeNode, 2, "hot", 1}});
  REQUIRE(node.said<WorkerRequest>() != nullptr);
  CHECK(node.said<WorkerRequest>()->reason == "hot");
  node.actions.clear();
  node.hear(StopRound{1, "excluded"});
  node(agent_event::WorkerAsks{{1, WorkerRequest::Kind::kExcludeNode, 3, "hot", 1}});
  CHECK(node.said<WorkerRequest>() == nullptr);
}

TEST_CASE("AgentMachine: the first step is said, and the last one with the workers' end") {
  Node node;
  node.run();
  node(agent_event::FirstStepDone{{7, 3}});
  CHECK(node.said<FirstStep>() == nullptr);
  node(agent_event::FirstStepDone{{1, 41}});
  REQUIRE(node.said<FirstStep>() != nullptr);
  CHECK(node.said<FirstStep>()->step == 41);
  node.hear(StopRound{1, "failed"});
  node(agent_event::WorkersGone{1, 99});
  node(agent_event::StoreBound{4001});
  REQUIRE(node.said<WorkersStopped>() != nullptr);
  CHECK(node.said<WorkersStopped>()->last_step == 99);
}

TEST_CASE("AgentMachine: a warning is said; workers that are asked to leave do so in order") {
  Node node;
  node.run();
  node(agent_event::Warned{{Preempted::Kind::kNode, "got SIGUSR1", 60s}});
  REQUIRE(node.said<Preempted>() != nullptr);
  CHECK(node.said<Preempted>()->reason == "got SIGUSR1");
  node.hear(Preempt{7, "another round's", 60s});
  CHECK(node.last<agent_action::RequestStop>() == nullptr);
  node.hear(Preempt{1, "node 1 got SIGUSR1", 60s});
  REQUIRE(node.last<agent_action::RequestStop>() != nullptr);
  CHECK(node.last<agent_action::RequestStop>()->notice == 60s);
  CHECK(node.last<agent_action::StopWorkers>() == nullptr);
  node(agent_event::WorkersLeft{1});
  CHECK(node.said<WorkersLeft>() != nullptr);
  node.hear(StopRound{1, "all workers have left"});
  CHECK(node.last<agent_action::StopWorkers>() != nullptr);
}

TEST_CASE("AgentMachine: warned before any rendezvous took it in, it ends with 75 or 124") {
  for (const auto kind : {Preempted::Kind::kNode, Preempted::Kind::kTimeLimit}) {
    Node node;
    node(agent_event::Start{});
    node(agent_event::Warned{{kind, "got SIGUSR1", 60s}});
    REQUIRE(node.last<agent_action::Exit>() != nullptr);
    CHECK(node.last<agent_action::Exit>()->verdict.exit_code ==
          (kind == Preempted::Kind::kNode ? 75 : 124));
  }
}

}  // namespace
}  // namespace ddprun::membership
