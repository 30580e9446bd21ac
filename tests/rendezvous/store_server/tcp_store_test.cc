// SPDX-License-Identifier: Apache-2.0
// The blocking client and the server, over real sockets.
#include "rendezvous/store/tcp_store.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/error.h"
#include "rendezvous/store/prefix_store.h"
#include "tests/rendezvous/store_server/server_thread.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace ddprun::store;
using namespace ddprun::store::testing;
using namespace std::chrono_literals;
using ddprun::test::code_of;
using ddprun::test::Contains;

namespace {

TcpStoreOptions within(std::chrono::milliseconds timeout) {
  TcpStoreOptions options;
  options.timeout = timeout;
  return options;
}

// Accepts one connection, answers the handshake, and is silent from then on.
class MuteServer {
 public:
  MuteServer() : listener_(listen_on(resolve({"127.0.0.1", 0}).front())) {
    endpoint_ = {"127.0.0.1", local_address(listener_.get()).port()};
    thread_ = std::thread([this] {
      const Deadline deadline = Deadline::after(10s);
      connection_ = accept_from(listener_.get(), deadline);
      char handshake[10];
      receive_all(connection_.get(), handshake, sizeof handshake, deadline);
      send_all(connection_.get(), handshake + 6, 4, deadline);
    });
  }
  ~MuteServer() { thread_.join(); }
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  UniqueFd listener_;
  UniqueFd connection_;
  Endpoint endpoint_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("TcpStore: every call, against the server", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), within(10s));
  store.ping();
  store.set("k", "v");
  CHECK(store.get("k") == "v");
  CHECK(store.add("n", 5) == 5);
  CHECK(store.add("n", -7) == -2);
  CHECK(store.compare_set("cas", "", "first") == "first");
  CHECK(store.compare_set("cas", "other", "second") == "first");
  CHECK(store.compare_set("absent", "x", "y") == "x");
  CHECK(store.check({"k", "n"}));
  CHECK_FALSE(store.check({"k", "absent"}));
  CHECK(store.check({}));
  store.wait({"k", "n"});
  store.wait({});
  store.append("k", "w");
  CHECK(store.get("k") == "vw");
  store.multi_set({{"a", "1"}, {"b", ""}});
  CHECK(store.multi_get({"a", "b", "k"}) == std::vector<std::string>{"1", "", "vw"});
  CHECK(store.multi_get({}).empty());
  CHECK(store.num_keys() == 5);
  std::vector<std::string> keys = store.list_keys();
  std::sort(keys.begin(), keys.end());
  CHECK(keys == std::vector<std::string>{"a", "b", "cas", "k", "n"});
  CHECK(store.delete_key("a"));
  CHECK_FALSE(store.delete_key("a"));
  store.queue_push("q", "x");
  store.queue_push("q", "y");
  CHECK(store.queue_len("q") == 2);
  CHECK(store.queue_pop("q") == "x");
  CHECK(store.try_queue_pop("q") == "y");
  CHECK(store.try_queue_pop("q") == std::nullopt);
  store.barrier("alone", 1);
}

TEST_CASE("TcpStore: binary keys and values, up to 64 MiB", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), within(30s));
  const std::string key("\0\xff/\n", 4);
  store.set(key, std::string("\0x", 2));
  CHECK(store.get(key) == std::string("\0x", 2));
  std::string large(std::size_t{64} << 20, 'x');
  large.front() = 'a';
  large.back() = 'z';
  store.set("large", large);
  CHECK(store.get("large") == large);
  store.set(std::string(8191, 'k'), "longest key");
  CHECK(store.get(std::string(8191, 'k')) == "longest key");
}

TEST_CASE("TcpStore: values travel between clients, waits end at the other's write", "[net]") {
  ServerThread server;
  TcpStore here(server.endpoint(), within(10s));
  const std::unique_ptr<Store> there = here.clone();
  std::thread writer([&] {
    there->set("id", "0123");
    there->queue_push("q", "element");
    there->barrier("b", 2);
  });
  CHECK(here.get("id") == "0123");
  CHECK(here.queue_pop("q") == "element");
  here.barrier("b", 2);
  writer.join();
}

TEST_CASE("TcpStore: competing consumers each get an element", "[net]") {
  ServerThread server;
  TcpStore producer(server.endpoint(), within(10s));
  std::vector<std::thread> consumers;
  std::atomic<int> sum{0};
  for (int i = 0; i < 4; ++i) {
    consumers.emplace_back([&] {
      TcpStore store(server.endpoint(), within(10s));
      for (int n = 0; n < 25; ++n) sum += std::stoi(store.queue_pop("q"));
    });
  }
  for (int i = 1; i <= 100; ++i) producer.queue_push("q", std::to_string(i));
  for (std::thread& consumer : consumers) consumer.join();
  CHECK(sum == 5050);
  CHECK(producer.queue_len("q") == 0);
}

TEST_CASE("TcpStore: an expired wait names its keys and keeps the connection", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), within(30ms));
  for (int i = 0; i < 3; ++i) {
    try {
      store.wait({"here", "gone"});
      FAIL("did not expire");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kTimeout);
      CHECK_THAT(error.what(), Contains("\"here\", \"gone\"") && Contains("30 ms"));
    }
    CHECK(code_of([&] { store.get("gone"); }) == ErrorCode::kTimeout);
    CHECK(code_of([&] { store.multi_get({"gone"}); }) == ErrorCode::kTimeout);
    CHECK(code_of([&] { store.queue_pop("gone"); }) == ErrorCode::kTimeout);
    CHECK(code_of([&] { store.barrier("never" + std::to_string(i), 2); }) == ErrorCode::kTimeout);
  }
  store.set_timeout(10s);
  store.set("gone", "found");
  CHECK(store.get("gone") == "found");
  CHECK(server.stats().num_connections == 1);
}

TEST_CASE("TcpStore: a mute server costs the deadline, then the object is dead", "[net]") {
  const std::vector<std::function<void(Store&)>> calls = {
      [](Store& s) { s.add("n", 1); },
      [](Store& s) { s.compare_set("k", "", "v"); },
      [](Store& s) { s.check({"k"}); },
      [](Store& s) { s.num_keys(); },
      [](Store& s) { s.list_keys(); },
      [](Store& s) { s.delete_key("k"); },
      [](Store& s) { s.try_queue_pop("k"); },
      [](Store& s) { s.queue_len("k"); },
      [](Store& s) { dynamic_cast<TcpStore&>(s).ping(); },
      // The socket's buffers fill up, because nobody reads.
      [](Store& s) { s.set("k", std::string(std::size_t{32} << 20, 'x')); },
  };
  for (const auto& call : calls) {
    MuteServer mute;
    TcpStore store(mute.endpoint(), within(50ms));
    const Clock::time_point start = Clock::now();
    CHECK(code_of([&] { call(store); }) == ErrorCode::kTimeout);
    CHECK(Clock::now() - start < 5s);
    CHECK(code_of([&] { store.set("k", "v"); }) == ErrorCode::kConnectionLost);
  }
}

TEST_CASE("TcpStore: a mute server at a wait costs the deadline and the cancellation's", "[net]") {
  MuteServer mute;
  TcpStore store(mute.endpoint(), within(50ms));
  const Clock::time_point start = Clock::now();
  CHECK(code_of([&] { store.get("k"); }) == ErrorCode::kTimeout);
  CHECK(Clock::now() - start < TcpStore::kCancelTimeout + 5s);
  CHECK(code_of([&] { store.ping(); }) == ErrorCode::kConnectionLost);
}

TEST_CASE("TcpStore: a reply of absurd length costs the connection, not the memory", "[net]") {
  const UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
  std::thread server([&] {
    const Deadline deadline = Deadline::after(10s);
    const UniqueFd connection = accept_from(listener.get(), deadline);
    char handshake[10];
    receive_all(connection.get(), handshake, sizeof handshake, deadline);
    send_all(connection.get(), handshake + 6, 4, deadline);
    char opcode;
    receive_all(connection.get(), &opcode, 1, deadline);
    const std::uint64_t length = std::uint64_t{1} << 39;
    send_all(connection.get(), &length, sizeof length, deadline);
    send_all(connection.get(), "a few bytes", 11, deadline);
  });
  TcpStore store({"127.0.0.1", local_address(listener.get()).port()}, within(5s));
  CHECK(code_of([&] { store.compare_set("key", "", "value"); }) == ErrorCode::kConnectionLost);
  server.join();
}

TEST_CASE("TcpStore: a listener that never answers the handshake costs the deadline", "[net]") {
  const UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
  const Endpoint endpoint{"127.0.0.1", local_address(listener.get()).port()};
  CHECK(code_of([&] { TcpStore store(endpoint, within(50ms)); }) == ErrorCode::kTimeout);
}

TEST_CASE("TcpStore: nobody there is unavailable, after retries", "[net]") {
  std::uint16_t port;
  {
    const UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
    port = local_address(listener.get()).port();
  }
  CHECK(code_of([&] {
          TcpStore store({"127.0.0.1", port}, within(50ms));
        }) == ErrorCode::kUnavailable);
}

TEST_CASE("TcpStore: a waiting call ends at once when the server dies", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), within(60s));
  TcpStore idle(server.endpoint(), within(60s));
  std::thread killer([&] {
    // The wait has arrived when the server has seen the two handshakes, their PINGs and the wait.
    while (server.stats().num_requests < 5) std::this_thread::yield();
    server.kill();
  });
  const Clock::time_point start = Clock::now();
  CHECK(code_of([&] { store.get("never"); }) == ErrorCode::kConnectionLost);
  CHECK(Clock::now() - start < 10s);
  killer.join();
  CHECK(code_of([&] { idle.add("n", 1); }) == ErrorCode::kConnectionLost);
}

TEST_CASE("PrefixStore: PyTorch's key shapes", "[net]") {
  ServerThread server;
  const auto base = std::make_shared<TcpStore>(server.endpoint(), within(10s));
  const auto inner = std::make_shared<PrefixStore>("inner", base);
  PrefixStore outer("outer", inner);
  outer.set("k", "v");
  CHECK(base->list_keys() == std::vector<std::string>{"inner/outer/k"});
  CHECK(outer.get("k") == "v");
  CHECK(outer.list_keys() == std::vector<std::string>{"k"});
  CHECK(inner->list_keys() == std::vector<std::string>{"outer/k"});
  base->set("other", "");
  CHECK(outer.num_keys() == 2);
  CHECK(outer.list_keys().size() == 1);
  const std::unique_ptr<Store> copy = outer.clone();
  CHECK(copy->get("k") == "v");

  outer.append("k", "w");
  outer.multi_set({{"a", "1"}, {"b", "2"}});
  CHECK(outer.multi_get({"k", "a", "b"}) == std::vector<std::string>{"vw", "1", "2"});
  CHECK(outer.check({"a"}));
  outer.wait({"a"});
  CHECK(outer.compare_set("a", "1", "3") == "3");
  CHECK(outer.add("n", 2) == 2);
  CHECK(outer.delete_key("n"));
  outer.queue_push("q", "x");
  CHECK(base->queue_len("inner/outer/q") == 1);
  CHECK(outer.queue_len("q") == 1);
  CHECK(outer.queue_pop("q") == "x");
  CHECK(outer.try_queue_pop("q") == std::nullopt);
}

TEST_CASE("PrefixStore: barrier goes through num_members and last_member", "[net]") {
  ServerThread server;
  const auto base = std::make_shared<TcpStore>(server.endpoint(), within(10s));
  PrefixStore here("group", base);
  std::thread peer([&] {
    PrefixStore there("group", std::make_shared<TcpStore>(server.endpoint(), within(10s)));
    there.barrier("b", 2);
  });
  here.barrier("b", 2);
  peer.join();
  CHECK(base->get("group/b/num_members") == "2");
  CHECK(base->get("group/b/last_member") == "1");
}
