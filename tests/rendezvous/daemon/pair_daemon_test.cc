// SPDX-License-Identifier: Apache-2.0
// What the owner of a pair's daemon asks it and has it do: beside leading and standing by.
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/membership/link_connector.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/shelf.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/secret_file.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using ddprun::test::secret_of;
using membership::Terms;

DaemonOptions standing_by() {
  DaemonOptions options;
  options.stands_by = true;
  return options;
}

struct World {
  explicit World(DaemonOptions options = standing_by())
      : daemon(std::make_unique<Daemon>(io, bind_endpoint({.host = "127.0.0.1", .port = 0}),
                                        std::move(options))) {}
  ~World() { shelf->shut(false); }

  void lead(Terms terms) {
    journal::Content content;
    content.rows = shelf->content();
    KeptJobs kept(std::make_unique<ShelfWriter>(shelf), std::move(content),
                  [](const std::string&) {});
    kept.is_shared = false;
    kept.terms = std::move(terms);
    daemon->lead(std::move(kept));
  }
  TestAgent& join(const membership::Join& join) {
    return *agents.emplace_back(std::make_unique<TestAgent>(io, daemon->port(), join));
  }
  template <typename Done>
  bool until(Done done) {
    return run_until(io, done);
  }
  bool has_joined(int num_agents) {
    return until([&] {
      return daemon->status_json().find(concat("\"joined\":", num_agents)) != std::string::npos;
    });
  }
  // On a thread of its own, for as long as that takes.
  template <typename Call>
  auto blocking(Call call) {
    auto result = std::async(std::launch::async, call);
    REQUIRE(until([&] { return result.wait_for(0s) == std::future_status::ready; }));
    return result.get();
  }

  boost::asio::io_context io{1};
  const std::shared_ptr<Shelf> shelf = std::make_shared<Shelf>();
  std::unique_ptr<Daemon> daemon;
  std::vector<std::unique_ptr<TestAgent>> agents;
};

TEST_CASE_METHOD(World, "Pair's daemon: it tells how many jobs it has begun, holds, and has won") {
  CHECK(daemon->num_begun() == 0);
  lead({.own = "t1"});
  TestAgent& a = join(make_join("a", 2));
  REQUIRE(has_joined(1));
  CHECK(daemon->num_begun() == 0);
  CHECK_FALSE(daemon->has_won_any());
  TestAgent& b = join(make_join("b", 2));
  REQUIRE(until([&] { return !a.rounds.empty() && !b.rounds.empty(); }));
  CHECK(daemon->num_begun() == 1);
  CHECK(daemon->has_won_any());
  daemon->stand_by("");
  CHECK(daemon->num_begun() == 0);
  CHECK_FALSE(daemon->has_won_any());
  lead({.own = "t2", .bases = {"t1"}});
  CHECK(daemon->num_held() == 1);
  CHECK(daemon->num_begun() == 0);
  CHECK_FALSE(daemon->has_won_any());
  REQUIRE(until([&] { return daemon->num_begun() == 1; }));
  CHECK(daemon->num_held() == 0);
  CHECK(daemon->has_won_any());
}

TEST_CASE_METHOD(World, "Pair's daemon: /readyz says why who joins isn't served") {
  const auto readiness = [&] {
    return blocking([port = daemon->port()] {
      const std::string request = "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";
      const UniqueFd connection =
          connect_to(Endpoint{.host = "127.0.0.1", .port = port}, Deadline::after(5s));
      send_all(connection.get(), request.data(), request.size(), Deadline::after(5s));
      return ServedDaemon::read_all(connection);
    });
  };
  CHECK_THAT(readiness(), Contains("503") && Contains("\r\n\r\nnot ready: it stands by\n"));
  lead({.own = "t1"});
  CHECK_THAT(readiness(), Contains("200 OK") && Contains("\r\n\r\nok\n"));
  TestAgent& a = join(make_join("a", 1));
  REQUIRE(until([&] { return !a.rounds.empty(); }));
  a.kill();
  daemon->stand_by("");
  lead({.own = "t2", .bases = {"t1"}});
  CHECK_THAT(readiness(), Contains("503") && Contains("not ready: it holds jobs until"));
  daemon->end_jobs([] {});
  CHECK_THAT(readiness(), Contains("503") && Contains("not ready: it hands its jobs over"));
}

TEST_CASE_METHOD(World, "Pair's daemon: rows are kept beside those of the jobs") {
  lead({.own = "t1"});
  bool is_kept = false;
  daemon->keep({{"leader/given_up", "x"}}, [&] { is_kept = true; });
  REQUIRE(until([&] { return is_kept; }));
  CHECK(shelf->content().at("leader/given_up") == "x");
  shelf->shut(true);
  is_kept = false;
  daemon->keep({{"leader/given_up", "y"}}, [&] { is_kept = true; });
  shelf->shut(false);
  daemon->stand_by("");
  CHECK_FALSE(run_until(
      io, [&] { return is_kept; }, 50ms));
}

TEST_CASE_METHOD(World, "Pair's daemon: it ends its jobs, and says so once all is kept") {
  lead({.own = "t1"});
  TestAgent& a = join(make_join("a", 1));
  REQUIRE(until([&] { return !a.rounds.empty(); }));
  shelf->shut(true);
  bool is_kept = false, has_ended = false;
  daemon->keep({{"leader/x", "x"}}, [&] { is_kept = true; });
  daemon->end_jobs([&] {
    CHECK(is_kept);
    has_ended = true;
  });
  REQUIRE(until([&] { return !a.told.empty(); }));
  CHECK_THAT(a.told.back(), Contains("lost the rendezvous"));
  CHECK(daemon->has_won_any());
  CHECK_FALSE(has_ended);
  shelf->shut(false);
  REQUIRE(until([&] { return has_ended; }));
  is_kept = false;
  daemon->keep({{"leader/y", "y"}}, [&] { is_kept = true; });
  REQUIRE(until([&] { return is_kept; }));
  daemon->stand_by("");
  CHECK(a.workers_live);
}

TEST_CASE_METHOD(World,
                 "Pair's daemon: it waits not for ever for a journal that hangs at the end") {
  lead({.own = "t1"});
  shelf->shut(true);
  bool has_ended = false;
  daemon->end_jobs([&] { has_ended = true; });
  CHECK(until([&] { return has_ended; }));
  shelf->shut(false);
}

TEST_CASE_METHOD(World, "Pair's daemon: a static round's store outlives a term of its daemon") {
  auto static_join = make_join("a", 1);
  static_join.settings.rdzv_backend = membership::kStaticBackend;
  lead({.own = "t1"});
  TestAgent& a = join(static_join);
  REQUIRE(until([&] { return !a.rounds.empty(); }));
  const Endpoint port{.host = "127.0.0.1", .port = daemon->port()};
  const auto open = [port] { return std::make_unique<store::TcpStore>(port); };
  const auto first = blocking(open);
  const auto value_at = [&](store::TcpStore& store) {
    return blocking([&store] { return store.get("key"); });
  };
  blocking([&] { return first->set("key", "value"), true; });
  daemon->stand_by("", Stores::kKeep);
  CHECK(value_at(*first) == "value");
  const auto meanwhile = blocking(open);
  CHECK(value_at(*meanwhile) == "value");
  lead({.own = "t2", .bases = {"t1"}, .is_incumbent = true});
  REQUIRE(until([&] { return daemon->num_begun() == 1; }));
  CHECK(value_at(*first) == "value");
  const auto later = blocking(open);
  CHECK(value_at(*later) == "value");
  daemon->stand_by("", Stores::kKeep);
  daemon->stand_by("other:29400");  // which has the job now
  CHECK_THROWS_AS(value_at(*first), Error);
}

TEST_CASE("Pair's daemon: who calls has to prove the token, also while it stands by") {
  DaemonOptions options = standing_by();
  options.token = secret_of("a token of some length");
  int num_calls = 0;
  options.peer_calls = [&](const auto& frames, const auto&) {
    ++num_calls;
    frames->close();
  };
  World world(options);
  const auto call = [&](const std::string& token) {
    membership::LinkConnector connector(world.io, {"127.0.0.1", world.daemon->port()},
                                        {secret_of(token), nullptr}, ha::kMirrorPath);
    std::optional<bool> is_open;
    membership::LinkConnector::Handlers handlers;
    handlers.opened = [&](const auto& frames) {
      is_open = true;
      frames->close();
    };
    handlers.failed = [&](const auto&) { is_open = false; };
    connector.attempt(Clock::now() + 30s, std::move(handlers));
    REQUIRE(world.until([&] { return is_open.has_value(); }));
    return *is_open;
  };
  CHECK_FALSE(call("another token of ours"));
  CHECK(num_calls == 0);
  CHECK(call("a token of some length"));
  CHECK(num_calls == 1);
  world.lead({.own = "t1"});
  CHECK(call("a token of some length"));
  world.daemon->stand_by("");
  CHECK(call("a token of some length"));
  CHECK(num_calls == 3);
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
