// SPDX-License-Identifier: Apache-2.0
// Clients of a store behind proxies, while the proxies' connections come and go.
#include "rendezvous/store_server/store_proxy.h"

#include <sys/wait.h>
#include <unistd.h>

#include "common/error.h"
#include "common/peer_user.h"
#include "common/text.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/store_server/proxied_server.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/log_lines.h"

using namespace ddprun;
using namespace ddprun::store;
using namespace ddprun::store::testing;
using namespace std::chrono_literals;

namespace {

TcpStoreOptions thirty_seconds() {
  TcpStoreOptions options;
  options.timeout = 30s;
  return options;
}

}  // namespace

TEST_CASE("StoreProxy: clients of several nodes share one key space", "[net]") {
  ProxiedServer server({.num_proxies = 2});
  TcpStore one(server.endpoint(0), thirty_seconds()), other(server.endpoint(1), thirty_seconds());
  one.set("k", "v");
  one.ping();
  CHECK(other.get("k") == "v");
  CHECK(other.add("n", 2) == 2);
  CHECK(one.add("n", 3) == 5);
  one.queue_push("q", "a");
  CHECK(other.queue_pop("q") == "a");
  CHECK(one.compare_set("c", "", "x") == "x");
  CHECK(other.compare_set("c", "", "y") == "x");
  CHECK(other.num_keys() == 3);
}

TEST_CASE("StoreProxy: each request takes effect once, however often the connection is cut",
          "[net]") {
  constexpr int kClients = 4, kCalls = 400;
  ProxiedServer server({.num_proxies = 2, .cut_every = 7});
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&server, i] {
      TcpStore store(server.endpoint(static_cast<std::size_t>(i % 2)), thirty_seconds());
      for (int call = 0; call < kCalls; ++call) {
        store.add("sum", 1);
        store.append("text", "x");
        store.queue_push("queue", std::to_string(call));
        store.queue_pop("queue");
        std::string last = std::to_string(call);
        while (store.compare_set(concat("chain", i), call == 0 ? "" : std::to_string(call - 1),
                                 last) != last) {
        }
      }
      store.barrier("end", kClients);
    });
  }
  for (std::thread& client : clients) client.join();
  TcpStore store(server.endpoint(), thirty_seconds());
  CHECK(store.add("sum", 0) == kClients * kCalls);
  CHECK(store.get("text").size() == kClients * kCalls);
  CHECK(store.queue_len("queue") == 0);
  CHECK(server.num_cuts() > 100);
}

TEST_CASE("StoreProxy: a blocked WAIT goes on over a new connection", "[net]") {
  ProxiedServer server({.num_proxies = 2});
  TcpStore waiter(server.endpoint(0), thirty_seconds()),
      setter(server.endpoint(1), thirty_seconds());
  std::thread waits([&] { waiter.wait({"key"}); });
  while (server.num_waits() == 0) std::this_thread::yield();
  server.cut(0);
  setter.set("key", "here");
  setter.ping();
  CHECK(server.num_keys() == 1);
  CHECK(server.num_waits() == 0);
  server.mend(0);
  waits.join();
}

TEST_CASE("StoreProxy: requests wait while the connection is away", "[net]") {
  ProxiedServer server;
  TcpStore store(server.endpoint(), thirty_seconds());
  store.set("k", "v");
  store.ping();
  server.cut();
  const std::uint64_t before = server.num_requests();
  std::thread late([&] { CHECK(store.get("k") == "v"); });
  while (server.num_requests() == before) std::this_thread::yield();
  server.mend();
  late.join();
}

TEST_CASE("StoreProxy: large values pass, cut on their way", "[net]") {
  ProxiedServer server({.num_proxies = 2, .cut_every = 50});
  TcpStore one(server.endpoint(0), thirty_seconds()), other(server.endpoint(1), thirty_seconds());
  std::string large(20 << 20, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 / 3);
  one.set("large", large);
  CHECK(other.get("large") == large);
  one.multi_set({{"a", large}, {"b", "small"}});
  CHECK(other.multi_get({"b", "a"}) == std::vector<std::string>{"small", large});
}

TEST_CASE("StoreProxy: a client that goes takes its waits along", "[net]") {
  ProxiedServer server({.num_proxies = 2, .cut_every = 5});
  TcpStore stays(server.endpoint(1), thirty_seconds());
  for (int i = 0; i < 20; ++i) {
    TcpStoreOptions hurried;
    hurried.timeout = 20ms;
    TcpStore goes(server.endpoint(0), thirty_seconds());
    goes.set_timeout(20ms);
    CHECK(test::code_of([&] { goes.wait({"never"}); }) == ErrorCode::kTimeout);
  }
  stays.set("never", "now");
  CHECK(stays.get("never") == "now");
}

TEST_CASE("StoreProxy: a request that the store refuses closes that client alone", "[net]") {
  test::LogLines log;
  ProxiedServer server({.cut_every = 3});
  TcpStore bad(server.endpoint(), thirty_seconds()), good(server.endpoint(), thirty_seconds());
  bad.set("k", "no number");
  CHECK(test::code_of([&] { bad.add("k", 1); }) == ErrorCode::kConnectionLost);
  CHECK(!log.await("not a number").empty());
  CHECK(good.get("k") == "no number");
}

TEST_CASE("StoreProxy: processes of other users are refused", "[net][proc]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root can become another user");
  test::LogLines log;
  ProxiedServer server({.server = {.only_user = 0}});
  TcpStore own(server.endpoint(), thirty_seconds());
  own.set("secret", "x");
  const Endpoint endpoint = server.endpoint();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(3);
    try {
      TcpStoreOptions options;
      options.timeout = 2s;
      TcpStore store(endpoint, options);
      store.get("secret");
      ::_exit(1);
    } catch (const Error&) {
      ::_exit(0);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(!log.await("refused a connection of user 65534").empty());
  CHECK(peer_users_are_known());
  CHECK(own.get("secret") == "x");
}
