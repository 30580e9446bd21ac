// SPDX-License-Identifier: Apache-2.0
// Agents that know several endpoints of their rendezvous. The tests are about the order in which
// they are tried, and about a job whose leader falls silent while another one takes its place.
#include <algorithm>
#include <filesystem>

#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/journal/journal_file.h"
#include "tests/rendezvous/daemon/fake_standby.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/rendezvous/daemon/test_certificates.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
namespace event = membership::agent_event;

Endpoint here(std::uint16_t port) { return {.host = "127.0.0.1", .port = port}; }

std::string text(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

std::uint16_t port_of(const std::vector<UniqueFd>& listeners) {
  return local_address(listeners.front().get()).port();
}

std::uint16_t dead_port() { return port_of(bind_endpoint(here(0))); }

KeptJobs kept_in(const std::string& directory) {
  auto file = std::make_unique<journal::JournalFile>(directory, journal::Durability::kProcess);
  journal::Content content = file->load();
  return {std::move(file), std::move(content)};
}

// A rendezvous whose io context stands still on demand. Its host then takes connections, and nobody
// answers.
class PausableDaemon {
 public:
  explicit PausableDaemon(std::uint16_t port = 0, const DaemonOptions& options = {},
                          std::optional<KeptJobs> kept = std::nullopt)
      : daemon_(io_, bind_endpoint(here(port)), options, std::move(kept)) {}
  std::uint16_t port() const { return daemon_.port(); }
  void turn() {
    io_.restart();
    if (!paused) io_.poll();
  }
  bool paused = false;

 private:
  boost::asio::io_context io_{1};
  Daemon daemon_;
};

// A link alone, its events, and the time until each.
struct Linked {
  Linked(boost::asio::io_context& io, std::vector<Endpoint> endpoints)
      : link(
            io, std::move(endpoints),
            [this](const membership::AgentEvent& each) {
              if (const auto* is_up = variants::get_if<event::LinkUp>(&each)) up = *is_up;
              if (const auto* is_down = variants::get_if<event::LinkDown>(&each)) down = *is_down;
              if (const auto* has_failed = variants::get_if<event::LinkFailed>(&each)) {
                failed = *has_failed;
              }
            },
            [this](const std::string& why) { failures.push_back(why); }) {}
  bool is_decided() const { return up || failed; }

  std::optional<event::LinkUp> up;
  std::optional<event::LinkDown> down;
  std::optional<event::LinkFailed> failed;
  std::vector<std::string> failures;
  membership::AgentLink link;
};

// So long that a machine that stands still for seconds isn't taken for a silent leader.
constexpr std::chrono::milliseconds kKeepAlive = 5s;

struct World {
  World() { set_log_level(LogLevel::kError); }

  template <typename Done>
  bool until(Done done, std::chrono::milliseconds timeout = 10s) {
    const auto turn_and_look = [&] {
      for (PausableDaemon* daemon : {&leader, successor.get()}) {
        if (daemon != nullptr) daemon->turn();
      }
      return done();
    };
    const Deadline deadline = Deadline::after(timeout);
    while (!turn_and_look() && !deadline.expired()) {
      io.restart();
      io.run_one_for(2ms);
    }
    return done();
  }

  void start(int num_nodes, const std::vector<Endpoint>& endpoints,
             std::chrono::milliseconds keep_alive = 1min) {
    for (int i = 0; i < num_nodes; ++i) {
      membership::Join join = make_join("node" + std::to_string(i), num_nodes);
      join.timeouts.keep_alive = keep_alive;
      membership::AgentOptions options = TestAgent::options(0, join);
      options.endpoints = endpoints;
      agents.push_back(std::make_unique<TestAgent>(io, options));
    }
    REQUIRE(until([&] {
      return std::all_of(agents.begin(), agents.end(),
                         [](const auto& agent) { return agent->rounds.size() == 1; });
    }));
  }

  bool all_told(const std::string& what) const {
    return std::all_of(agents.begin(), agents.end(), [&](const auto& agent) {
      return std::any_of(agent->told.begin(), agent->told.end(), [&](const std::string& line) {
        return line.find(what) != std::string::npos;
      });
    });
  }

  test::TempDirectory directory;
  boost::asio::io_context io{1};
  PausableDaemon leader{0, {}, kept_in(directory.path("leader"))};
  std::unique_ptr<PausableDaemon> successor;
  std::vector<std::unique_ptr<TestAgent>> agents;
};

TEST_CASE_METHOD(World, "AgentLink: an endpoint where nothing listens sends it to the next one") {
  Linked one(io, {here(dead_port()), here(leader.port())});
  one.link.connect(5s);
  REQUIRE(until([&] { return one.is_decided(); }));
  REQUIRE(one.up);
  CHECK(one.up->endpoint == here(leader.port()));
  CHECK(one.failures.empty());  // no attempt had used up its time
}

TEST_CASE_METHOD(World, "AgentLink: a standby sends it to the next one") {
  FakeStandby standby(io);
  Linked one(io, {here(standby.port()), here(leader.port())});
  one.link.connect(5s);
  REQUIRE(until([&] { return one.is_decided(); }));
  REQUIRE(one.up);
  CHECK(one.up->endpoint == here(leader.port()));
  CHECK(standby.num_requests() == 1);
}

TEST_CASE_METHOD(World,
                 "AgentLink: a rendezvous that never answers costs a second, not all the time") {
  const auto mute = bind_endpoint(here(0));
  Linked one(io, {here(port_of(mute)), here(leader.port())});
  const auto begun = Clock::now();
  one.link.connect(1h);
  REQUIRE(until([&] { return one.is_decided(); }));
  REQUIRE(one.up);
  CHECK(Clock::now() - begun >= 900ms);
}

TEST_CASE_METHOD(World, "AgentLink: each of several has its share of a short time") {
  const auto mute = bind_endpoint(here(0));
  Linked one(io, {here(port_of(mute)), here(leader.port())});
  // If the machine stood still, it tries again. Without its share the second endpoint would never
  // get a turn.
  for (int i = 0; i < 5 && !one.up; ++i) {
    one.link.close();
    one.failed.reset();
    one.link.connect(400ms);
    REQUIRE(until([&] { return one.is_decided(); }));
  }
  CHECK(one.up);
}

TEST_CASE_METHOD(World,
                 "AgentLink: a failure says what happened last at each of several endpoints") {
  FakeStandby standby(io, standby_answer("n7:29400"));
  const auto dead = dead_port();
  Linked one(io, {here(dead), here(standby.port())});
  one.link.connect(3s);
  REQUIRE(until([&] { return one.is_decided(); }));
  REQUIRE(one.failed);
  CHECK_FALSE(one.failed->is_users_fault);
  CHECK_THAT(
      one.failed->message,
      Contains("can't reach the rendezvous at " + text(dead) + " or " + text(standby.port()) +
               ": tried ") &&
          Contains("; last: " + text(dead) + ": connection refused (nothing listens there); " +
                   text(standby.port()) + ": it is a standby of n7:29400. Check that a "));
  CHECK_THAT(one.failures, Catch::Matchers::VectorContains(
                               text(dead) + ": connection refused (nothing listens there); " +
                               text(standby.port()) + ": it is a standby of n7:29400"));
  // One line for each turn, and the pauses between turns grow: 0, 5, 10, … 320, 500, 500 ms.
  CHECK(one.failures.size() >= 3);
  CHECK(one.failures.size() <= 14);
}

TEST_CASE_METHOD(World, "AgentLink: a standby that is alone is asked again until it leads") {
  auto standby = std::make_unique<FakeStandby>(io);
  const auto port = standby->port();
  Linked one(io, {here(port)});
  one.link.connect(20s);
  REQUIRE(until([&] { return standby->num_requests() == 3; }));
  CHECK(one.failures[0] == "it is a standby, and no leader was found");
  standby.reset();
  successor = std::make_unique<PausableDaemon>(port);
  REQUIRE(until([&] { return one.is_decided(); }));
  CHECK(one.up);
}

TEST_CASE_METHOD(World, "AgentLink: HTTP 503 by itself is no standby's") {
  FakeStandby other(io, "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n");
  Linked one(io, {here(other.port()), here(leader.port())});
  one.link.connect(20s);
  REQUIRE(until([&] { return one.is_decided(); }));
  REQUIRE(one.failed);
  CHECK_THAT(one.failed->message,
             Contains("what listens there is not a ddprun rendezvous (it answered HTTP 503)"));
}

TEST_CASE_METHOD(
    World, "AgentLink: a rendezvous that takes it in without a welcome is left for the next one") {
  PausableDaemon other;
  Linked one(io, {here(leader.port()), here(other.port())});
  const auto comes_to = [&](std::uint16_t port) {
    one.link.close();
    one.up.reset();
    one.link.connect(5s);
    return until([&] {
             other.turn();
             return one.is_decided();
           }) &&
           one.up && one.up->endpoint == here(port);
  };
  CHECK(comes_to(leader.port()));
  CHECK(comes_to(other.port()));
  CHECK(comes_to(leader.port()));
  one.link.set_keep_alive(1min, 20s);
  CHECK(comes_to(leader.port()));  // this endpoint welcomed it
  CHECK(comes_to(other.port()));
}

TEST_CASE_METHOD(World, "AgentLink: comes back to the endpoint that welcomed it") {
  FakeStandby standby(io);
  start(2, {here(standby.port()), here(leader.port())});
  const int before = standby.num_requests();
  CHECK(before >= 2);
  for (auto& agent : agents) agent->cut_link();
  REQUIRE(until([&] { return all_told("the rendezvous is back"); }));
  CHECK(standby.num_requests() == before);
  CHECK(all_told("lost the rendezvous at " + text(leader.port()) + " ("));
}

TEST_CASE_METHOD(World,
                 "AgentLink: a leader falls silent, another one leads: workers don't notice") {
  auto standby = std::make_unique<FakeStandby>(io);
  const auto port = standby->port();
  start(2, {here(leader.port()), here(port)}, kKeepAlive);
  leader.paused = true;
  // It is looking for the leader already.
  REQUIRE(until([&] { return standby->num_requests() >= 4; }));
  standby.reset();
  std::filesystem::copy(directory.path("leader"), directory.path("successor"));
  successor =
      std::make_unique<PausableDaemon>(port, DaemonOptions{}, kept_in(directory.path("successor")));
  REQUIRE(until([&] { return all_told("the rendezvous is back"); }));
  CHECK(all_told("lost the rendezvous at " + text(leader.port()) +
                 " (nothing was heard for 2500 ms, and " + text(port) + " has taken its place)"));
  for (auto& agent : agents) {
    CHECK(agent->workers_live);
    agent->workers_succeed();
  }
  REQUIRE(until([&] {
    return std::all_of(agents.begin(), agents.end(),
                       [](const auto& agent) { return agent->exit.has_value(); });
  }));
  for (auto& agent : agents) {
    CHECK(agent->exit->verdict.exit_code == 0);
    CHECK(agent->rounds.size() == 1);
  }
}

TEST_CASE_METHOD(
    World, "AgentLink: one that falls silent before it welcomes this node again is left, too") {
  successor = std::make_unique<PausableDaemon>();
  Linked one(io, {here(successor->port()), here(leader.port())});
  one.link.connect(5s);
  REQUIRE(until([&] { return one.is_decided(); }));
  one.link.set_keep_alive(kKeepAlive, 600ms);  // the leader has welcomed it
  one.link.close();
  one.up.reset();
  one.link.connect(5s);
  REQUIRE(until([&] { return one.is_decided(); }));
  REQUIRE(one.up->endpoint == here(successor->port()));
  successor->paused = true;
  REQUIRE(until([&] { return one.down.has_value(); }));
  CHECK_FALSE(one.down->silence);
  CHECK_THAT(one.down->reason, Contains(text(leader.port()) + " has taken its place"));
  one.up.reset();
  one.link.connect(5s);
  REQUIRE(until([&] { return one.is_decided(); }));
  CHECK(one.up->endpoint == here(leader.port()));
}

TEST_CASE_METHOD(World, "AgentLink: a leader that answers again ends the look-out") {
  FakeStandby standby(io);
  start(1, {here(leader.port()), here(standby.port())}, kKeepAlive);
  CHECK(standby.num_requests() == 0);
  leader.paused = true;
  REQUIRE(until([&] { return standby.num_requests() >= 2; }));
  leader.paused = false;
  int seen = -1;
  // Waits until it wasn't asked for longer than the longest pause.
  REQUIRE(until([&, asked_at = Clock::now()]() mutable {
    if (std::exchange(seen, standby.num_requests()) != seen) asked_at = Clock::now();
    return Clock::now() - asked_at > 600ms;
  }));
  CHECK(agents[0]->workers_live);
  CHECK_FALSE(all_told("lost the rendezvous"));
}

TEST_CASE_METHOD(World, "AgentLink: silence without anybody in its place stops the workers") {
  FakeStandby standby(io);
  start(1, {here(leader.port()), here(standby.port())}, kKeepAlive);
  leader.paused = true;
  REQUIRE(until([&] { return !agents[0]->workers_live; }));
  CHECK(standby.num_requests() >= 2);
  CHECK(all_told("(nothing was heard for 5000 ms)"));
}

// The leader's host is mute after the connection ended; only the standby answers.
class MuteLeader {
 public:
  MuteLeader(boost::asio::io_context& io, const Certificates& certificates, bool with_token,
             bool with_tls) {
    DaemonOptions options;
    if (with_token) options.token = test::secret_of("a token that is long enough");
    if (with_tls) options.tls = certificates.server();
    auto leader = std::make_unique<Daemon>(io, bind_endpoint(here(0)), options);
    options.stands_by = true;
    standby_ = std::make_unique<Daemon>(io, bind_endpoint(here(0)), options);
    membership::Join join = make_join("a", 1);
    join.timeouts.keep_alive = 3s;
    membership::AgentOptions agent_options = TestAgent::options(0, join);
    agent_options.endpoints = {here(leader->port()), here(standby_->port())};
    agent_ = std::make_unique<TestAgent>(
        io, agent_options,
        membership::LinkSecurity{options.token,
                                 with_tls ? certificates.client() : security::TlsContext()});
    REQUIRE(run_until(io, [&] { return agent_->rounds.size() == 1; }));
    leader.reset();
    mute_ = bind_endpoint(agent_options.endpoints[0]);
  }
  bool workers_live() const { return agent_->workers_live; }

 private:
  std::unique_ptr<Daemon> standby_;
  std::vector<UniqueFd> mute_;
  std::unique_ptr<TestAgent> agent_;
};

TEST_CASE(
    "AgentLink: a standby's answer keeps workers alive, unless a token is wanted and not proved") {
  set_log_level(LogLevel::kError);
  const Certificates certificates;
  boost::asio::io_context io{1};
  const MuteLeader plain(io, certificates, false, false), over_tls(io, certificates, false, true),
      over_tls_with_token(io, certificates, true, true), with_token(io, certificates, true, false);
  // The token's case is over: nobody that answered has proved it.
  CHECK(run_until(io, [&] { return !with_token.workers_live(); }));
  run_until(
      io, [] { return false; }, 2s);  // the other cases have had their time, and more
  CHECK(plain.workers_live());
  CHECK(over_tls.workers_live());
  CHECK(over_tls_with_token.workers_live());
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
