// SPDX-License-Identifier: Apache-2.0
// Daemons that begin a term with the jobs of an earlier one, and shipped agents over real sockets.
#include <algorithm>
#include <array>

#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/shelf.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;

std::uint16_t free_port() {
  return local_address(bind_endpoint({.host = "127.0.0.1", .port = 0}).front().get()).port();
}

struct World {
  World() {
    set_log_level(LogLevel::kInfo);
    lines().clear();
    set_log_sink([](LogLevel, std::string_view text) { lines().emplace_back(text); });
  }
  ~World() {
    for (const auto& shelf : shelves) shelf->shut(false);
    set_log_level(LogLevel::kError);
  }
  std::unique_ptr<Daemon> daemon(std::uint16_t port, const std::shared_ptr<Shelf>& shelf,
                                 membership::Terms terms, bool is_shared = false) {
    shelves.push_back(shelf);
    journal::Content content;
    content.rows = shelf->content();
    KeptJobs kept(std::make_unique<ShelfWriter>(shelf), std::move(content),
                  [](const std::string&) {});
    kept.is_shared = is_shared;
    kept.terms = std::move(terms);
    return std::make_unique<Daemon>(io, bind_endpoint({.host = "127.0.0.1", .port = port}),
                                    DaemonOptions(), std::move(kept));
  }
  TestAgent& agent(const std::string& host, int num_nodes) {
    auto options = TestAgent::options(ports[0], make_join(host, num_nodes));
    options.endpoints.push_back({.host = "127.0.0.1", .port = ports[1]});
    return *agents.emplace_back(std::make_unique<TestAgent>(io, options));
  }
  bool all_in_round(std::uint64_t round) {
    return run_until(io, [&] {
      return std::ranges::all_of(agents, [&](const auto& agent) {
        return !agent->rounds.empty() && agent->rounds.back().round == round;
      });
    });
  }
  bool all_succeed() {
    for (const auto& agent : agents) agent->workers_succeed();
    return run_until(io, [&] {
      return std::ranges::all_of(agents, [](const auto& agent) { return agent->exit.has_value(); });
    });
  }
  bool logs(const std::string& what) {
    return run_until(io, [&] {
      return std::ranges::any_of(
          lines(), [&](const std::string& line) { return line.find(what) != line.npos; });
    });
  }

  boost::asio::io_context io{1};
  std::array<std::uint16_t, 2> ports{free_port(), free_port()};
  std::vector<std::shared_ptr<Shelf>> shelves;
  std::vector<std::unique_ptr<TestAgent>> agents;
};

TEST_CASE_METHOD(World, "Held: the nodes of a job come, are asked, and its round goes on") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  TestAgent& a = agent("a", 2);
  TestAgent& b = agent("b", 2);
  REQUIRE(all_in_round(1));
  first.reset();
  const auto second = daemon(ports[1], shelf, {.own = "t2", .bases = {"t1"}});
  CHECK_THAT(second->jobs_json(), Contains("\"phase\":\"held\""));
  CHECK_THAT(second->status_json(), Contains("\"held\":1"));
  CHECK(shelf->content().empty() == false);
  REQUIRE(logs("is won: 2 of its 2 nodes follow term t2"));
  REQUIRE(logs("node 1 (b, 127.0.0.1) is back"));
  CHECK(a.workers_live);
  CHECK(b.workers_live);
  CHECK(all_succeed());
  CHECK(a.exit->verdict.exit_code == 0);
  CHECK(b.exit->verdict.exit_code == 0);
  CHECK(a.rounds.size() == 1);
}

TEST_CASE_METHOD(World, "Held: a node that was not needed is asked as well, a new one waits") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  agent("a", 3);
  agent("b", 3);
  TestAgent& late = agent("c", 3);
  REQUIRE(all_in_round(1));
  late.cut_link();
  first.reset();
  const auto second = daemon(ports[1], shelf, {.own = "t2", .bases = {"t1"}, .is_incumbent = true});
  REQUIRE(logs("is won: 2 of its 3 nodes"));
  CHECK(all_succeed());
  for (const auto& each : agents) CHECK(each->exit->verdict.exit_code == 0);
}

TEST_CASE_METHOD(World, "Held: where its node follows another term, the job is that one's") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  TestAgent& a = agent("a", 1);
  REQUIRE(all_in_round(1));
  first.reset();
  const auto copy = std::make_shared<Shelf>();  // what the first one has by itself
  copy->rows = shelf->content();
  auto second = daemon(ports[1], shelf, {.own = "t2", .bases = {"t1"}});
  REQUIRE(logs("is back"));
  second.reset();
  auto stale = daemon(ports[0], copy, {.own = "t3", .bases = {"t1"}, .is_incumbent = true});
  REQUIRE(logs("follows term t2, not this rendezvous' term t3: another rendezvous goes on"));
  CHECK_THAT(stale->status_json(), Contains("\"held\":0"));
  CHECK(a.workers_live);
  lines().clear();
  second = daemon(ports[1], shelf, {.own = "t2"});  // restarted, nobody mirrors it
  REQUIRE(logs("is back"));
  CHECK(a.workers_live);
  CHECK(all_succeed());
  CHECK(a.exit->verdict.exit_code == 0);
  CHECK(a.rounds.size() == 1);
}

TEST_CASE_METHOD(World, "Held: a stale job goes on here once the other one has given its term up") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  TestAgent& a = agent("a", 1);
  REQUIRE(all_in_round(1));
  first.reset();
  const auto copy = std::make_shared<Shelf>();
  copy->rows = shelf->content();
  auto other = daemon(ports[1], copy, {.own = "t2", .bases = {"t1"}});
  REQUIRE(logs("is back"));
  other.reset();
  const auto stale = daemon(ports[0], shelf, {.own = "t3", .bases = {"t1"}});
  REQUIRE(logs("another rendezvous goes on with the job"));
  CHECK(stale->num_held() == 1);
  stale->add_bases({"t2"});
  REQUIRE(logs("is won: 1 of its 1 nodes follow term t3"));
  CHECK(stale->num_held() == 0);
  CHECK(a.workers_live);
  CHECK(all_succeed());
  CHECK(a.exit->verdict.exit_code == 0);
  CHECK(a.rounds.size() == 1);
}

TEST_CASE_METHOD(World, "Held: one that knows nothing of a node does not end it") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  TestAgent& a = agent("a", 1);
  REQUIRE(all_in_round(1));
  first.reset();
  // It has lost its state, say.
  const auto foreign = daemon(ports[0], std::make_shared<Shelf>(), {.own = "t9"});
  CHECK(run_until(io, [&] {
    return std::ranges::any_of(a.told, [](const std::string& text) {
      return text.find("leads in term t9, this node follows term t1") != text.npos;
    });
  }));
  const auto own = daemon(ports[1], shelf, {.own = "t2", .bases = {"t1"}});
  REQUIRE(logs("is back"));
  CHECK(a.workers_live);
  CHECK(all_succeed());
  CHECK(a.exit->verdict.exit_code == 0);
}

TEST_CASE_METHOD(World, "Held: where the other one is not heard a new agent is sent on once") {
  const auto lonely = daemon(ports[0], std::make_shared<Shelf>(), {.own = "t2"});
  lonely->hear_peer(false);
  SECTION("the other one is there: the job is begun at that one") {
    const auto other = daemon(ports[1], std::make_shared<Shelf>(), {.own = "t3"});
    agent("a", 1);
    REQUIRE(all_in_round(1));
    CHECK(lonely->num_begun() == 0);
    CHECK(other->num_begun() == 1);
  }
  SECTION("it is not: the job is begun here") {
    agent("a", 2);
    agent("b", 2);
    REQUIRE(all_in_round(1));
    CHECK(lonely->num_begun() == 1);
  }
}

TEST_CASE_METHOD(World, "Held: a rendezvous of a foreign term is left for the one that is obeyed") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  TestAgent& a = agent("a", 1);
  REQUIRE(all_in_round(1));
  first.reset();
  const auto copy = std::make_shared<Shelf>();
  copy->rows = shelf->content();
  // It takes the job for its own without asking.
  auto foreign = daemon(ports[0], copy, {.own = "t9"});
  CHECK(run_until(io, [&] {
    return std::ranges::any_of(a.told, [](const std::string& text) {
      return text.find("leads in term t9, this node follows term t1") != text.npos;
    });
  }));
  CHECK(a.workers_live);
  const auto own = daemon(ports[1], shelf, {.own = "t1"});
  CHECK(all_succeed());
  CHECK(a.exit->verdict.exit_code == 0);
}

TEST_CASE_METHOD(World, "Held: where others may take over nobody is asked before that is kept") {
  const auto shelf = std::make_shared<Shelf>();
  auto first = daemon(ports[0], shelf, {.own = "t1"});
  TestAgent& a = agent("a", 1);
  REQUIRE(all_in_round(1));
  first.reset();
  shelf->shut(true);
  const auto second = daemon(ports[1], shelf, {.own = "t2", .bases = {"t1"}}, true);
  REQUIRE(run_until(
      io, [&] { return second->status_json().find("\"joined\":1") != std::string::npos; }));
  CHECK_FALSE(run_until(
      io, [&] { return second->jobs_json().find("\"granted\":0") == std::string::npos; }, 100ms));
  shelf->shut(false);
  REQUIRE(logs("is back"));
  CHECK(all_succeed());
  CHECK(a.exit->verdict.exit_code == 0);
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
