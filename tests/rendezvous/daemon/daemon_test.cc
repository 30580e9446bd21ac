// SPDX-License-Identifier: Apache-2.0
// Agents (shipped machine and link, workers simulated) against a Daemon over real sockets.
#include "rendezvous/daemon/daemon.h"

#include <future>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using membership::Join;

struct Fixture {
  explicit Fixture(const DaemonOptions& options = {}) {
    set_log_level(LogLevel::kError);
    auto listeners = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
    daemon = std::make_unique<Daemon>(io, std::move(listeners), options);
    port = daemon->port();
  }
  TestAgent& start(const Join& join) {
    agents.push_back(std::make_unique<TestAgent>(io, port, join));
    return *agents.back();
  }
  bool all_started(std::size_t num_rounds) {
    return run_until(io, [&] {
      for (const auto& agent : agents) {
        if (agent->rounds.size() < num_rounds) return false;
      }
      return true;
    });
  }
  bool all_exited() {
    return run_until(io, [&] {
      for (const auto& agent : agents) {
        if (!agent->exit) return false;
      }
      return true;
    });
  }
  // Asks for a page on a thread of its own.
  std::string get(const std::string& path) {
    auto answer = std::async(std::launch::async, [this, path] {
      const std::string request = concat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
      const UniqueFd connection =
          connect_to(Endpoint{.host = "127.0.0.1", .port = port}, Deadline::after(5s));
      send_all(connection.get(), request.data(), request.size(), Deadline::after(5s));
      return ServedDaemon::read_all(connection);
    });
    REQUIRE(run_until(io, [&] { return answer.wait_for(0s) == std::future_status::ready; }));
    return answer.get();
  }

  boost::asio::io_context io{1};
  std::unique_ptr<Daemon> daemon;
  std::uint16_t port = 0;
  std::vector<std::unique_ptr<TestAgent>> agents;
};

TEST_CASE("Daemon: two nodes get their ranks, succeed and end with 0") {
  Fixture f;
  TestAgent& a = f.start(make_join("a", 2, 4));
  REQUIRE(run_until(f.io, [&] { return !a.told.empty(); }));
  CHECK(a.told.back() == "waiting for nodes: 1 of 2 are here");
  TestAgent& b = f.start(make_join("b", 2, 3));
  REQUIRE(f.all_started(1));
  CHECK(a.rounds[0].node_rank == 0);
  CHECK(a.rounds[0].serve_store);
  CHECK(b.rounds[0].node_rank == 1);
  CHECK(b.rounds[0].first_global_rank == 4);
  CHECK(b.rounds[0].world_size == 7);
  CHECK(b.rounds[0].master_addr == "127.0.0.1");
  CHECK(b.rounds[0].master_port == 10'000);
  a.workers_succeed();
  b.workers_succeed();
  REQUIRE(f.all_exited());
  CHECK(a.exit->verdict.exit_code == 0);
  CHECK(b.exit->verdict.exit_code == 0);
  bool idle = false;
  f.daemon->when_idle(1h, rendezvous::Serve::kUntilTimeout, [&] { idle = true; });
  CHECK(run_until(f.io, [&] { return idle; }));
}

TEST_CASE("Daemon: a failed worker restarts both nodes at once, then ends the job for both") {
  Fixture f;
  Join join = make_join("a", 2);
  join.settings.max_restarts = 1;
  TestAgent& a = f.start(join);
  join = make_join("b", 2);
  join.settings.max_restarts = 1;
  TestAgent& b = f.start(join);
  REQUIRE(f.all_started(1));
  const auto begun = Clock::now();
  b.worker_fails(7);
  REQUIRE(f.all_started(2));
  // bench/ measures this time; a loaded machine must not fail here.
  CHECK(Clock::now() - begun < 5s);
  CHECK(a.rounds[1].restart_count == 1);
  CHECK(b.rounds[1].restart_count == 1);
  CHECK(a.rounds[1].node_rank == a.rounds[0].node_rank);
  CHECK(a.rounds[1].master_port != a.rounds[0].master_port);
  const std::string jobs = f.get("/v1/jobs");
  CHECK_THAT(jobs, Contains("\"rounds\":[{\"round\":1,\"nodes\":2") && Contains("exit code 7") &&
                       Contains("\"seconds\":{\"rendezvous\":") && Contains("\"ettr\":"));
  b.worker_fails(9);
  REQUIRE(f.all_exited());
  CHECK(a.exit->verdict.exit_code == 9);
  CHECK(b.exit->verdict.exit_code == 9);
  REQUIRE(a.exit->verdict.first_failure);
  CHECK(a.exit->verdict.first_failure->host == "b");
  CHECK(a.exit->verdict.first_failure->last_lines == std::vector<std::string>{"the last words"});
}

TEST_CASE(
    "Daemon: connections, agents and jobs are counted, and a finished job is not waited for") {
  DaemonOptions options;
  options.keep_finished = 1h;
  Fixture f(options);
  auto connection = connect_to(Endpoint{.host = "127.0.0.1", .port = f.port}, Deadline::after(5s));
  const auto says = [&](const std::string& text) {
    return f.daemon->status_json().find(text) != std::string::npos;
  };
  REQUIRE(run_until(f.io,
                    [&] { return says("\"under_way\":1,\"max_under_way\":4096,\"silent\":1,"); }));
  connection.reset();
  REQUIRE(run_until(f.io, [&] { return says("\"silent\":0"); }));
  Join join = make_join("a", 1);
  TestAgent& a = f.start(join);
  REQUIRE(f.all_started(1));
  CHECK(says("\"jobs\":{\"live\":1,\"finished\":0,\"max_finished\":1000,"));
  CHECK(says("\"agents\":{\"joined\":1"));
  CHECK(says("\"addresses\":[\"127.0.0.1:" + std::to_string(f.port) + "\"]"));
  CHECK_THAT(f.get("/v1/jobs"), Contains("\"finished\":[]"));
  a.workers_succeed();
  REQUIRE(f.all_exited());
  REQUIRE(run_until(f.io, [&] { return says("\"live\":0,\"finished\":1,"); }));
  CHECK_THAT(f.get("/v1/jobs"),
             Contains("\"jobs\":[]") &&
                 Contains("\"finished\":[{\"run_id\":\"job\",\"phase\":\"ended\",\"exit_code\":0"));
  bool idle = false;
  f.daemon->when_idle(1h, rendezvous::Serve::kUntilTimeout, [&] { idle = true; });
  CHECK(run_until(f.io, [&] { return idle; }));
}

TEST_CASE("Daemon: one that ends with its jobs says so at /readyz, and serves these alone") {
  Fixture f;
  TestAgent& a = f.start(make_join("a", 1));
  REQUIRE(f.all_started(1));
  CHECK_THAT(f.get("/readyz"), Contains("200 OK") && Contains("\r\n\r\nok\n"));
  for (const char* path :
       {"/healthz?x=1", "/readyz?", "/metrics?x=1", "/v1/jobs?x", "/v1/status?x=/y", "/?x"}) {
    INFO(path);  // a page ignores a query that it doesn't know
    CHECK_THAT(f.get(path), Contains("200 OK"));
  }
  CHECK_THAT(f.get("/metric?s"), Contains("404 Not Found"));
  bool idle = false;
  f.daemon->when_idle(1h, rendezvous::Serve::kUntilJobsEnd, [&] { idle = true; });
  CHECK_THAT(f.get("/readyz"),
             Contains("503 Service Unavailable") &&
                 Contains("\r\n\r\nnot ready: it takes no new jobs: it ends with those that it "
                          "has\n"));
  CHECK_THAT(f.get("/healthz"), Contains("200 OK"));
  const test::LogLines log;
  set_log_level(LogLevel::kInfo);
  Join other = make_join("b", 1);
  other.run_id = "other";
  const TestAgent b(f.io, f.port, other);
  REQUIRE(run_until(f.io, [&] { return !log.all().empty(); }));
  set_log_level(LogLevel::kError);
  CHECK_THAT(log.all().front(), Contains("the rendezvous there is ending with an earlier job"));
  CHECK(b.rounds.empty());
  a.cut_link();
  REQUIRE(run_until(f.io,
                    [&] { return !a.told.empty() && a.told.back() == "the rendezvous is back"; }));
  CHECK_FALSE(idle);
  a.workers_succeed();
  REQUIRE(f.all_exited());
  CHECK(a.exit->verdict.exit_code == 0);
  CHECK(run_until(f.io, [&] { return idle; }));
}

TEST_CASE("Daemon: an agent that comes back within the grace changes nothing") {
  DaemonOptions options;
  options.reconnect_grace = 1min;
  Fixture f(options);
  TestAgent& a = f.start(make_join("a", 2));
  TestAgent& b = f.start(make_join("b", 2));
  REQUIRE(f.all_started(1));
  for (int i = 0; i < 5; ++i) {
    b.cut_link();
    REQUIRE(run_until(f.io, [&] { return b.told.back() == "the rendezvous is back"; }));
    b.told.push_back("");
  }
  CHECK(a.rounds.size() == 1);
  CHECK(b.workers_live);
  b.cut_link();
  b.workers_succeed();  // said while there is no link
  a.workers_succeed();
  REQUIRE(f.all_exited());
  CHECK(a.exit->verdict.exit_code == 0);
  CHECK(b.exit->verdict.exit_code == 0);
}

TEST_CASE("Daemon: a killed agent ends the job at once, by name, with exit code 75") {
  Fixture f;
  TestAgent& a = f.start(make_join("a", 2));
  TestAgent& b = f.start(make_join("b", 2));
  REQUIRE(f.all_started(1));
  const auto begun = Clock::now();
  b.kill();
  REQUIRE(run_until(f.io, [&] { return a.exit.has_value(); }));
  CHECK(Clock::now() - begun < 5s);
  CHECK(a.exit->verdict.exit_code == 75);
  CHECK_THAT(a.exit->verdict.reason, Contains("node 1 (b, 127.0.0.1) was lost"));
  CHECK_FALSE(a.workers_live);
}

TEST_CASE("Daemon: a signal on one node stops all, and the report names it") {
  Fixture f;
  TestAgent& a = f.start(make_join("a", 2));
  TestAgent& b = f.start(make_join("b", 2));
  REQUIRE(f.all_started(1));
  b.feed(membership::agent_event::Signal{SIGINT});
  REQUIRE(f.all_exited());
  CHECK(a.exit->verdict.exit_code == 130);
  CHECK(b.exit->verdict.exit_code == 130);
  CHECK_THAT(a.exit->verdict.reason, Contains("node 1 (b, 127.0.0.1) left: received SIGINT"));
}

TEST_CASE("Daemon: nodes that disagree are refused with both values") {
  Fixture f;
  f.start(make_join("a", 2));
  Join other = make_join("b", 2);
  other.settings.max_restarts = 3;
  TestAgent& b = f.start(other);
  REQUIRE(run_until(f.io, [&] { return b.exit.has_value(); }));
  CHECK(b.exit->verdict.exit_code == 2);
  CHECK_THAT(b.exit->verdict.reason, Contains("--max-restarts is 3 here, but 0 on a (127.0.0.1)"));
}

TEST_CASE("Daemon: versions that have nothing in common are one line on both sides") {
  constexpr int kOurs = membership::kProtocolVersion;
  for (const auto& [theirs, which] :
       {std::pair{kOurs + 1, "ddprund (rendezvous)"}, std::pair{0, "ddprun (agent)"}}) {
    Fixture f;
    const test::LogLines log;
    set_log_level(LogLevel::kInfo);
    Join join = make_join("a", 1);
    join.version = join.oldest_version = theirs;
    TestAgent& a = f.start(join);
    REQUIRE(run_until(f.io, [&] { return a.exit.has_value(); }));
    set_log_level(LogLevel::kError);
    const std::string line = concat("the ddprun at 127.0.0.1 speaks version ", theirs,
                                    " of the control protocol, the rendezvous versions 1 to ",
                                    kOurs, ": install a newer ", which);
    CHECK(a.exit->verdict.exit_code == 2);
    CHECK_THAT(a.exit->verdict.reason, Contains(line) && !Contains("\n"));
    CHECK(a.rounds.empty());
    REQUIRE(log.all().size() == 1);
    CHECK_THAT(log.all().front(), Contains(line));
  }
}

TEST_CASE("Daemon: a surplus agent waits as spare and replaces a lost node") {
  Fixture f;
  TestAgent& a = f.start(make_join("a", 2));
  TestAgent& b = f.start(make_join("b", 2));
  REQUIRE(f.all_started(1));
  TestAgent& c = f.start(make_join("c", 2));
  REQUIRE(run_until(f.io, [&] { return !c.told.empty(); }));
  CHECK(c.told[0] == "job job already has 2 of 2; waiting as spare; for a new job give --rdzv-id");
  b.kill();
  REQUIRE(run_until(f.io, [&] { return !c.rounds.empty() && a.rounds.size() == 2; }));
  CHECK(c.rounds[0].round == 2);
  CHECK(c.rounds[0].node_rank == 1);
  CHECK(a.rounds[1].node_rank == 0);
}

TEST_CASE(
    "Daemon: agents keep their workers when it goes away, then end with 75: a node was lost") {
  DaemonOptions options;
  options.embedded = true;
  Fixture f(options);
  membership::AgentOptions agent = TestAgent::options(f.port, make_join("a", 1));
  agent.embedded_lost_timeout = 300ms;
  f.agents.push_back(std::make_unique<TestAgent>(f.io, agent));
  TestAgent& a = *f.agents.back();
  REQUIRE(f.all_started(1));
  f.daemon.reset();
  REQUIRE(run_until(f.io, [&] { return !a.told.empty(); }));
  CHECK(a.workers_live);
  REQUIRE(f.all_exited());
  CHECK(a.exit->local);
  CHECK(a.exit->verdict.exit_code == 75);
  CHECK_THAT(a.exit->verdict.reason, Contains("lost the node that serves the rendezvous"));
}

TEST_CASE("AgentLink: an unreachable rendezvous: who was tried, how long, why") {
  boost::asio::io_context io{1};
  set_log_level(LogLevel::kError);
  auto unused = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
  const auto port = local_address(unused[0].get()).port();
  unused.clear();
  membership::AgentOptions options = TestAgent::options(port, make_join("a", 1));
  options.connect_timeout = 200ms;
  TestAgent agent(io, options);
  REQUIRE(run_until(io, [&] { return agent.exit.has_value(); }));
  CHECK(agent.exit->verdict.exit_code == 69);
  CHECK_THAT(agent.exit->verdict.reason, Contains("127.0.0.1:" + std::to_string(port)) &&
                                             Contains("connection refused") &&
                                             Contains("times in "));
}

TEST_CASE("AgentLink: a listener that never answers is given up at the deadline") {
  boost::asio::io_context io{1};
  auto mute = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
  membership::AgentOptions options =
      TestAgent::options(local_address(mute[0].get()).port(), make_join("a", 1));
  options.connect_timeout = 200ms;
  TestAgent agent(io, options);
  REQUIRE(run_until(io, [&] { return agent.exit.has_value(); }));
  CHECK_THAT(agent.exit->verdict.reason, Contains("no answer"));
}

TEST_CASE("bind_endpoint: a port in use names the holder, a foreign address is refused") {
  auto first = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
  const auto port = local_address(first[0].get()).port();
  CHECK_THROWS_WITH(bind_endpoint(Endpoint{.host = "127.0.0.1", .port = port}),
                    Contains("in use by") && Contains(std::to_string(::getpid())));
  CHECK_THROWS_WITH(bind_endpoint(Endpoint{.host = "192.0.2.1", .port = 0}),
                    Contains("192.0.2.1 is not an address of this machine"));
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
