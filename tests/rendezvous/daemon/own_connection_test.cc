// SPDX-License-Identifier: Apache-2.0
// The connection of a process to the rendezvous that it serves itself. It has no TLS, and nobody
// else can make one.
#include <boost/asio/post.hpp>
#include <future>
#include <string>

#include "rendezvous/daemon/port_listener.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_certificates.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous::testing {
namespace {

constexpr char kAsksForJobs[] = "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n";

bool await_own(ServedDaemon& daemon, const UniqueFd& socket) {
  std::promise<bool> answer;
  boost::asio::post(daemon.io(),
                    [&] { answer.set_value(daemon.daemon().await_own(socket.get())); });
  return answer.get_future().get();
}

std::string ask(const UniqueFd& socket) {
  const std::string request = kAsksForJobs;
  send_all(socket.get(), request.data(), request.size(), Deadline::after(5s));
  return ServedDaemon::read_all(socket);
}

TEST_CASE("Own connection: it needs no TLS, and the next one does again") {
  const Certificates certificates;
  DaemonOptions options;
  options.tls = certificates.server();
  ServedDaemon daemon(options);
  const UniqueFd before = daemon.connect(), own = daemon.connect(), after = daemon.connect();
  REQUIRE(await_own(daemon, own));
  CHECK(ask(before).find("426 ") != std::string::npos);
  CHECK(ask(own).find("200 OK") != std::string::npos);
  CHECK(ask(after).find("426 ") != std::string::npos);
}

TEST_CASE("Own connection: the connection named last replaces an earlier one") {
  const Certificates certificates;
  DaemonOptions options;
  options.tls = certificates.server();
  ServedDaemon daemon(options);
  const UniqueFd first = daemon.connect(), second = daemon.connect();
  REQUIRE(await_own(daemon, first));
  REQUIRE(await_own(daemon, second));
  CHECK(ask(first).find("426 ") != std::string::npos);
  CHECK(ask(second).find("200 OK") != std::string::npos);
}

TEST_CASE("Own connection: a connection to another place is not the own one") {
  ServedDaemon daemon;
  const auto elsewhere = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
  const std::uint16_t port = local_address(elsewhere.front().get()).port();
  const UniqueFd socket =
      connect_to(Endpoint{.host = "127.0.0.1", .port = port}, Deadline::after(5s));
  CHECK_FALSE(await_own(daemon, socket));
}

TEST_CASE("Own connection: its address is nobody else's as long as it is awaited") {
  const auto listeners = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
  const SocketAddress served = local_address(listeners.front().get());
  OwnConnections own;
  own.listens_at(served);
  const Endpoint endpoint{.host = "127.0.0.1", .port = served.port()};
  UniqueFd socket = connect_to(endpoint, Deadline::after(5s));
  const SocketAddress its = local_address(socket.get());
  REQUIRE(own.await(socket.get()));
  socket.reset();
  const UniqueFd thief(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::bind(thief.get(), reinterpret_cast<const sockaddr*>(&its.storage), its.length) != 0);
  const UniqueFd accepted = accept_from(listeners.front().get(), Deadline::after(5s));
  CHECK(own.take(accepted.get()));
  CHECK_FALSE(own.take(accepted.get()));
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
