// SPDX-License-Identifier: Apache-2.0
// The daemon's port under malformed, slow and silent peers, and the key spaces that it serves.
#include <algorithm>
#include <future>
#include <thread>

#include "common/error.h"
#include "common/socket.h"
#include "common/text.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/gangs/node_messages.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizers.h"
#include "tests/support/secret_file.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using ddprun::test::contains;
using ddprun::test::Contains;

constexpr int kNumConnections = 1000;

TEST_CASE("Daemon port: HTTP pages") {
  ServedDaemon daemon;
  CHECK_THAT(daemon.exchange("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("200 OK") && Contains("ddprun-rendezvous"));
  CHECK_THAT(daemon.exchange("GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("\"jobs\":[]"));
  CHECK_THAT(daemon.exchange("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("200 OK") && Contains("\"agents\":{\"joined\":0") &&
                 Contains("\"under_way\":0,\"max_under_way\":4096"));
  CHECK_THAT(daemon.exchange("GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"), Contains("404"));
  CHECK_THAT(daemon.exchange("DELETE /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             Contains("405"));
  CHECK_THAT(daemon.exchange("GET /v1/agent HTTP/1.1\r\nHost: localhost\r\n\r\n"), Contains("426"));
  CHECK(rendezvous_at(resolve(Endpoint{.host = "127.0.0.1", .port = daemon.port}), 2s) == "");
}

TEST_CASE("rendezvous_at: a server that only mentions a rendezvous is none") {
  const std::vector<UniqueFd> listeners = bind_endpoint({.host = "127.0.0.1", .port = 0});
  const std::vector<SocketAddress> there{local_address(listeners.front().get())};
  const auto mark_of = [&](const std::string& body) {
    auto server = std::async(std::launch::async, [&] {
      const UniqueFd client = accept_from(listeners.front().get(), Deadline::after(5s));
      std::string request;
      for (char byte = 0; !request.ends_with("\r\n\r\n"); request += byte) {
        receive_all(client.get(), &byte, 1, Deadline::after(5s));
      }
      const std::string answer =
          concat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
      send_all(client.get(), answer.data(), answer.size(), Deadline::after(5s));
    });
    return rendezvous_at(there, 5s);
  };
  CHECK(mark_of(R"({"service":"ddprun-rendezvous","job_mark":"7"})") == "7");
  CHECK(mark_of(R"({"peer":"ddprun-rendezvous","job_mark":"7"})") == std::nullopt);
}

TEST_CASE("Daemon port: malformed input closes that connection and names the peer") {
  ServedDaemon daemon;
  const UniqueFd bystander = daemon.connect();
  const std::string greeting = kUpgrade;
  send_all(bystander.get(), greeting.data(), greeting.size(), Deadline::after(5s));
  CHECK_THAT(daemon.exchange("HELLO\r\n\r\n"), !Contains("still open"));
  CHECK_THAT(daemon.exchange("\x16\x03\x01"), !Contains("still open"));
  CHECK_THAT(daemon.exchange("\x01garbage"), !Contains("still open"));
  CHECK_THAT(daemon.exchange("GET /" + std::string(10'000, 'x') + " HTTP/1.1\r\n\r\n"),
             !Contains("200 OK") && !Contains("still open"));
  CHECK_THAT(daemon.exchange_frames(text_frame("not json")), !Contains("still open"));
  // The peer is told, too: an agent would otherwise come again and again with the same Join.
  CHECK_THAT(daemon.exchange_frames(text_frame("{\"type\":\"join\"}")),
             !Contains("still open") && Contains("\"refused\"") && Contains("is missing") &&
                 Contains("\"exit_code\":2"));
  CHECK_THAT(daemon.exchange_frames(text_frame("{\"type\":\"ack\",\"seq\":0,\"ack\":0}")),
             !Contains("still open"));
  CHECK_THAT(daemon.exchange_frames(std::string(20, static_cast<char>(0xff))),
             !Contains("still open"));
  CHECK_THAT(daemon.exchange(kUpgrade + text_frame("{}")), Contains("400 Bad Request"));
  daemon.stop();
  std::string all;
  for (const std::string& line : lines()) all += line + "\n";
  CHECK_THAT(all, Contains("127.0.0.1:") && Contains("not a valid HTTP request") &&
                      Contains("it speaks TLS") && Contains("first byte 1") &&
                      Contains("not a control message") && Contains("\"seq\" is missing"));
}

TEST_CASE("Daemon port: a listener of both families names an IPv4 peer as one of IPv4 does") {
  constexpr char kBothFamilies[] = "::ffff:127.0.0.1";
  DaemonOptions options;
  options.has_gangs = true;
  std::vector<std::string> said;
  {
    ServedDaemon daemon(options, kBothFamilies);
    std::string upgrade = kUpgrade;
    upgrade.replace(upgrade.find("/v1/agent"), 9, gangs::kNodePath);
    const UniqueFd node = daemon.upgrade(upgrade);
    gangs::NodeHello hello;
    hello.version = hello.instance = hello.node = hello.user = "a";
    hello.slots = 1;
    hello.uid = ::geteuid();
    const std::string frame = text_frame(gangs::encode(hello));
    send_all(node.get(), frame.data(), frame.size(), Deadline::after(5s));
    char byte = 0;
    receive_all(node.get(), &byte, 1, Deadline::after(5s));  // the welcome
    CHECK_THAT(daemon.exchange("GET /v1/gangs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
               Contains(concat("\"address\":\"", local_address(node.get()).text(), "\"")));
    CHECK_THAT(daemon.exchange("HELLO\r\n\r\n"), !Contains("still open"));
    CHECK_THAT(daemon.exchange_frames(text_frame("not json")), !Contains("still open"));
    const UniqueFd stranger = daemon.upgrade(upgrade);
    const std::string garbage = text_frame("not json");
    send_all(stranger.get(), garbage.data(), garbage.size(), Deadline::after(5s));
    CHECK_THAT(ServedDaemon::read_all(stranger), !Contains("still open"));
    daemon.stop();
    said = lines();
  }
  options.has_gangs = false;
  options.token = ddprun::test::secret_of("correct horse battery staple");
  ServedDaemon daemon(options, kBothFamilies);
  CHECK_THAT(daemon.exchange_frames(text_frame("not json")), !Contains("still open"));
  daemon.stop();
  said.insert(said.end(), lines().begin(), lines().end());
  for (const char* peer : {"connection of 127.0.0.1:", "connection of agent 127.0.0.1:",
                           "connection of standing agent 127.0.0.1:"}) {
    CHECK(std::ranges::any_of(said, [&](const auto& line) { return contains(line, peer); }));
  }
  CHECK(std::ranges::none_of(said, [](const auto& line) { return contains(line, "ffff"); }));
}

TEST_CASE("Daemon port: a gang with more members than any object has is refused unread") {
  DaemonOptions options;
  options.has_gangs = true;
  ServedDaemon daemon(options);
  std::string body = "{\"0\":0";
  for (int i = 1; i < 65'536; ++i) body += concat(",\"", i, "\":0");
  body += "}";
  CHECK_THAT(daemon.exchange(concat("POST /v1/gangs HTTP/1.1\r\nHost: localhost\r\n",
                                    "Content-Length: ", body.size(), "\r\n\r\n", body)),
             Contains("400 Bad Request") && Contains("an object has more than 1000 members"));
}

TEST_CASE("Daemon port: silent and slow peers are closed at the deadline") {
  {
    ServedDaemon daemon(100ms);
    CHECK(daemon.exchange("") == "");                       // no byte
    CHECK(daemon.exchange("GET /healthz HTTP/1.1") == "");  // half a request
  }
  ServedDaemon daemon(2500ms);  // enough time for the upgrade
  // No Join came.
  CHECK_THAT(daemon.exchange(kUpgrade), Contains("101") && !Contains("still open"));
}

TEST_CASE("Daemon port: half-said requests don't keep others out: the oldest one goes") {
  ServedDaemon daemon(60s, 3);
  const std::string half = "GET /heal";
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(daemon.connect());
    send_all(slow.back().get(), half.data(), half.size(), Deadline::after(5s));
  }
  for (int i = 0; i < 2; ++i) {
    CHECK_THAT(daemon.exchange("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
               Contains("ddprun-rendezvous"));
  }
  // The daemon may have seen them in another order than the one in which they were made.
  const auto closed = [](const UniqueFd& fd) {
    char byte;
    return !receive_step(fd.get(), &byte, 1).ended.empty();
  };
  CHECK(std::count_if(slow.begin(), slow.end(), closed) == 1);
  const auto open = std::find_if_not(slow.begin(), slow.end(), closed);
  REQUIRE(open != slow.end());
  const std::string rest = "thz HTTP/1.1\r\nHost: localhost\r\n\r\n";
  send_all(open->get(), rest.data(), rest.size(), Deadline::after(5s));
  CHECK_THAT(daemon.read_all(*open), Contains("ddprun-rendezvous"));
}

TEST_CASE("Daemon port: agents that never join don't keep others out: the oldest one goes") {
  ServedDaemon daemon(60s, 3);
  std::vector<UniqueFd> mute;
  for (int i = 0; i < 4; ++i) mute.push_back(daemon.upgrade());
  CHECK(daemon.read_all(mute.front()).empty());  // this one was closed
  for (int i = 1; i < 4; ++i) {
    char byte = 0;
    const SocketStep step = receive_step(mute[i].get(), &byte, 1);
    CHECK(step.num_bytes == 0);
    CHECK(step.ended.empty());
  }
}

TEST_CASE("Daemon port: c10d connections get a plain store") {
  ServedDaemon daemon;
  const Endpoint endpoint{.host = "127.0.0.1", .port = daemon.port};
  store::TcpStore first(endpoint);
  store::TcpStore second(endpoint);
  first.set("key", "value");
  CHECK(second.get("key") == "value");
}

// The seconds that a thousand connections to that port take, each with a question and its answer.
double time_of_connections(std::uint16_t port, int at_once) {
  const std::string hello(
      "\0\xce\xf7\x85\x3c\x0d"
      "1234",
      10);  // VALIDATE, PING
  const Endpoint endpoint{.host = "127.0.0.1", .port = port};
  const Clock::time_point begin = Clock::now();
  for (int done = 0; done < kNumConnections; done += at_once) {
    std::vector<UniqueFd> clients;
    for (int i = 0; i < at_once; ++i) {
      clients.push_back(connect_to(endpoint, Deadline::after(10s)));
      send_all(clients.back().get(), hello.data(), hello.size(), Deadline::after(10s));
    }
    for (const UniqueFd& client : clients) {
      char nonce[4];
      receive_all(client.get(), nonce, sizeof nonce, Deadline::after(10s));
      REQUIRE(std::string(nonce, 4) == "1234");
    }
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST_CASE("Daemon port: a connection costs little, also beside hundreds that begin with it") {
  ServedDaemon daemon;
  // The kernel's own cost: a thread that accepts, reads and answers one connection after the other.
  const UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  constexpr int kAttempts = 3;  // the best counts: other programs may take the CPU for a while
  const auto bare = std::async(std::launch::async, [&] {
    for (int i = 0; i < kAttempts * kNumConnections; ++i) {
      const UniqueFd connection = accept_from(listener.get(), Deadline::after(30s));
      char hello[10];
      receive_all(connection.get(), hello, sizeof hello, Deadline::after(10s));
      send_all(connection.get(), hello + 6, 4, Deadline::after(10s));
    }
  });
  double few = 1e9, many = 1e9, least = 1e9;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    few = std::min(few, time_of_connections(daemon.port, 5));
    many = std::min(many, time_of_connections(daemon.port, 250));
    least = std::min(least, time_of_connections(local_address(listener.get()).port(), 250));
  }
  WARN("a thousand connections: " << few << " s, 5 at once; " << many << " s, 250 at once; "
                                  << least << " s without a daemon");
  CHECK(many < 5 * few);
  CHECK(many < (test::kIsSanitized ? 30 : 8) * least);
}

TEST_CASE("Daemon port: static mode serves each round's key space, old ones stay") {
  ServedDaemon daemon;
  const Endpoint endpoint{.host = "127.0.0.1", .port = daemon.port};
  boost::asio::io_context io{1};
  auto join = make_join("a", 1);
  join.settings.rdzv_backend = membership::kStaticBackend;
  join.settings.max_restarts = 1;
  join.node_rank = 0;
  TestAgent agent(io, daemon.port, join);
  REQUIRE(run_until(io, [&] { return agent.rounds.size() == 1; }));
  CHECK(agent.rounds[0].master_addr == "127.0.0.1");
  CHECK(agent.rounds[0].master_port == daemon.port);
  CHECK_FALSE(agent.rounds[0].serve_store);
  store::TcpStore old_worker(endpoint);
  old_worker.set("key", "round 1");
  agent.worker_fails(1);
  REQUIRE(run_until(io, [&] { return agent.rounds.size() == 2; }));
  store::TcpStore new_worker(endpoint);
  CHECK_FALSE(new_worker.check({"key"}));
  CHECK(old_worker.get("key") == "round 1");
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
