// SPDX-License-Identifier: Apache-2.0
// Handshakes that wait for their turn.
#include "rendezvous/daemon/pending_handshakes.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <string>
#include <vector>

#include "common/log.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/rendezvous/daemon/test_pending_handshakes.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

struct Turns {
  explicit Turns(std::size_t max_under_way, std::chrono::milliseconds turn = 10s,
                 std::size_t max_per_address = 1000, std::chrono::milliseconds brief_turn = 10s) {
    TlsAdmission::Options options;
    options.max_under_way = max_under_way;
    options.max_per_address = max_per_address;
    options.turn = turn;
    options.brief_turn = brief_turn;
    options.begin = [this](UniqueFd connection, Newcomer newcomer) {
      begun.push_back(std::move(connection));
      from.push_back(newcomer.address());
      newcomer.ended_by([this, number = held.size()](const std::string&) {
        ended_early.push_back(from[number]);
        held[number] = Newcomer();
      });
      held.push_back(std::move(newcomer));
      most = std::max(most, num_under_way());
    };
    turns = std::make_shared<TlsAdmission>(io, newcomers, std::move(options));
    set_log_level(LogLevel::kError);
  }
  ~Turns() {
    newcomers->stop();
    turns->stop();
  }
  std::size_t num_under_way() const {
    return static_cast<std::size_t>(std::count_if(
        held.begin(), held.end(), [](const Newcomer& each) { return !each.address().empty(); }));
  }
  // The handshake that began as this number is over: its peer is known from now on.
  void known(std::size_t number) {
    held[number] = Newcomer();
    io.restart();
    io.poll();
  }
  // A connection comes. Returns its descriptor.
  int come(const std::string& address = "10.0.0.1") {
    UniqueFd connection = any_connection();
    const int fd = connection.get();
    turns->take(std::move(connection), admit(*newcomers, address));
    return fd;
  }

  boost::asio::io_context io{1};
  std::shared_ptr<PendingHandshakes> newcomers =
      std::make_shared<PendingHandshakes>(io, PendingHandshakes::Options());
  std::shared_ptr<TlsAdmission> turns;
  std::vector<UniqueFd> begun;
  std::vector<Newcomer> held;  // the handshakes that have begun; an empty entry is over
  std::size_t most = 0;
  std::vector<std::string> from, ended_early;
};

TEST_CASE("TlsAdmission: 64 of many that come at once are under way, and all have their turn") {
  Turns t(64);
  std::vector<int> fds;
  for (int i = 0; i < 500; ++i) fds.push_back(t.come());
  CHECK(t.begun.size() == 64);
  for (std::size_t i = 0; i < t.held.size(); ++i) t.known(i);
  REQUIRE(t.begun.size() == 500);
  CHECK(t.most == 64);
  for (std::size_t i = 0; i < fds.size(); ++i) CHECK(t.begun[i].get() == fds[i]);
}

TEST_CASE("TlsAdmission: a silent connection makes way for others, and only for them") {
  Turns t(2, 50ms);
  t.come();
  t.come();
  t.io.run_for(120ms);
  CHECK(t.ended_early.empty());
  t.come();
  t.io.restart();
  REQUIRE(run_until(t.io, [&] { return t.begun.size() == 3; }));
  CHECK(t.ended_early.size() == 1);
}

TEST_CASE("TlsAdmission: one address has not all of them: others begin at once, whatever waits") {
  Turns t(8, 10s, 4);
  for (int i = 0; i < 100; ++i) t.come("10.0.0.66");
  CHECK(t.begun.size() == 4);
  const int honest = t.come("10.0.0.1");
  REQUIRE(t.begun.size() == 5);
  CHECK(t.begun.back().get() == honest);
}

TEST_CASE("TlsAdmission: addresses take turns, however many wait of one") {
  Turns t(2);
  for (int i = 0; i < 100; ++i) t.come("10.0.0.66");
  t.come("10.0.0.1");
  t.come("10.0.0.1");
  t.come("10.0.0.2");
  for (int i = 0; i < 3; ++i) t.known(i);
  REQUIRE(t.begun.size() == 5);
  CHECK(t.from ==
        std::vector<std::string>{"10.0.0.66", "10.0.0.66", "10.0.0.1", "10.0.0.2", "10.0.0.66"});
  t.known(3);
  CHECK(t.from.back() == "10.0.0.1");
}

TEST_CASE("TlsAdmission: the address that has the most of them under way makes way first") {
  Turns t(3, 50ms);
  t.come("10.0.0.1");  // it is slow, too, and older
  t.come("10.0.0.66");
  t.come("10.0.0.66");
  t.come("10.0.0.2");
  REQUIRE(run_until(t.io, [&] { return t.begun.size() == 4; }));
  CHECK(t.ended_early == std::vector<std::string>{"10.0.0.66"});
}

TEST_CASE("TlsAdmission: an address that has none need not wait long for one that has several") {
  Turns t(3, 1h, 1000, 20ms);
  for (int i = 0; i < 5; ++i) t.come("10.0.0.66");
  t.io.run_for(60ms);
  CHECK(t.ended_early.empty());  // they have nobody else to wait for them
  t.come("10.0.0.1");
  REQUIRE(run_until(t.io, [&] { return t.begun.size() == 4; }));
  CHECK(t.from.back() == "10.0.0.1");
  CHECK(t.ended_early.size() == 1);
}

TEST_CASE("TlsAdmission: the more connections of an address wait, the less time has each") {
  Turns t(4, 1h, 2, 1ms);
  for (int i = 0; i < 2000; ++i) t.come("10.0.0.66");
  REQUIRE(run_until(t.io, [&] { return t.begun.size() >= 20; }));  // 10 ms each
  CHECK(t.ended_early.size() >= 18);
}

TEST_CASE(
    "TlsAdmission: a connection that must go while it waits is closed, and its turn goes to the "
    "next one") {
  PendingHandshakes::Options few;
  few.max = 1;
  Turns t(1);
  const auto others = std::make_shared<PendingHandshakes>(t.io, few);
  t.come();
  UniqueFd connection = any_connection();
  const int fd = connection.get();
  t.turns->take(std::move(connection), admit(*others, "10.0.0.2"));
  const Newcomer next = admit(*others, "10.0.0.3");
  CHECK(::fcntl(fd, F_GETFD) == -1);
  t.come("10.0.0.4");
  t.known(0);
  CHECK(t.from == std::vector<std::string>{"10.0.0.1", "10.0.0.4"});
}

TEST_CASE("TlsAdmission: a connection that is gone already holds no turn") {
  boost::asio::io_context io{1};
  TlsAdmission::Options options;
  options.max_under_way = 1;
  int num_begun = 0;
  options.begin = [&](const UniqueFd&, const Newcomer&) { ++num_begun; };
  const auto newcomers = std::make_shared<PendingHandshakes>(io, PendingHandshakes::Options());
  const auto turns = std::make_shared<TlsAdmission>(io, newcomers, std::move(options));
  for (int i = 0; i < 10; ++i) turns->take(any_connection(), admit(*newcomers, "10.0.0.1"));
  io.poll();
  CHECK(num_begun == 10);
  newcomers->stop();
  turns->stop();
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
