// SPDX-License-Identifier: Apache-2.0
// Clients that misbehave, and machines that run short: the effects on the server and on the other
// clients.
#include "rendezvous/store_server/store_server.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "rendezvous/store/tcp_store.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/rendezvous/store/many_keys.h"
#include "tests/rendezvous/store_server/server_thread.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::store;
using namespace ddprun::store::testing;
using namespace std::chrono_literals;
using ddprun::test::Contains;

namespace {

// A connection on which the test can send any bytes.
class RawClient {
 public:
  explicit RawClient(const Endpoint& server) : fd_(connect_to(server, deadline())) {}

  void say(std::string_view bytes) { send_all(fd_.get(), bytes.data(), bytes.size(), deadline()); }
  void say(const std::vector<Request>& requests) { say(encoded(requests)); }
  std::string hear(std::size_t size) {
    std::string bytes(size, '\0');
    receive_all(fd_.get(), bytes.data(), size, deadline());
    return bytes;
  }
  // True when the server closes, whatever bytes come before.
  bool closed() {
    try {
      for (;;) hear(1);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kConnectionLost;
    }
  }
  bool has_answer() const {
    char byte;
    return ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  }
  void shut_down_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void shrink_receive_buffer() {
    const int size = 64 << 10;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  }
  std::string local_text() const { return local_address(fd_.get()).text(); }

 private:
  static Deadline deadline() { return Deadline::after(10s); }
  UniqueFd fd_;
};

// A server that does nothing until the test runs its io.
struct ServerHere {
  ServerHere() {
    UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
    port = local_address(listener.get()).port();
    server.listen(std::move(listener));
  }
  Endpoint endpoint() const { return {"127.0.0.1", port}; }

  boost::asio::io_context io;
  StoreServer server{io, {}};
  std::uint16_t port = 0;
};

std::string length(std::uint64_t value) {
  std::string bytes;
  append_u64(value, &bytes);
  return bytes;
}

const std::string kHandshake = encoded({validate_request()});

TcpStoreOptions ten_seconds() {
  TcpStoreOptions options;
  options.timeout = 10s;
  return options;
}

}  // namespace

TEST_CASE("StoreServer: malformed input closes that connection alone and is logged", "[net]") {
  struct Case {
    std::string bytes;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {"GET / HTTP/1.1\r\n\r\n", "not a c10d store handshake"},
      {std::string("\0xxxx", 5), "wrong magic"},
      {encoded({ping_request(1)}), "not a c10d store handshake"},
      {kHandshake + kHandshake, "second handshake"},
      {kHandshake + '\x13', "unknown operation 19"},
      {kHandshake + '\x01' + length(8193), "key of 8193 bytes"},
      {kHandshake + '\x01' + length(1) + 'k' + length((64 << 20) + 1), "value of 67108865 bytes"},
      {kHandshake + '\x06' + length(131073), "WAIT of 131073 keys"},
      {kHandshake + '\x0b' + length(~std::uint64_t{0}), "MULTI_SET of 18446744073709551615"},
      {encoded({validate_request(), request_of(Opcode::kSet, "/k", "junk"),
                request_of_number(Opcode::kAdd, "/k", 1)}),
       "not a number"},
  };
  ServerThread server;
  TcpStore neighbour(server.endpoint(), ten_seconds());
  for (const Case& c : cases) {
    CAPTURE(c.reason);
    LogLines log;
    RawClient client(server.endpoint());
    client.say(c.bytes);
    CHECK(client.closed());
    const std::string line = log.await(c.reason);
    CHECK_THAT(line, Contains(client.local_text()));
    neighbour.ping();
  }
}

TEST_CASE("StoreServer: requests before a malformed one are answered", "[net]") {
  LogLines log;
  ServerThread server;
  RawClient client(server.endpoint());
  client.say(encoded({validate_request(), ping_request(7)}) + '\xff');
  CHECK(client.hear(4) == std::string("\7\0\0\0", 4));
  CHECK(client.closed());
}

TEST_CASE("StoreServer: a request cut off by its client's end is logged and not done", "[net]") {
  LogLines log;
  ServerThread server;
  RawClient client(server.endpoint());
  const std::string set = encoded({request_of(Opcode::kSet, "/k", "value")});
  client.say(kHandshake + set.substr(0, set.size() - 1));
  client.shut_down_sending();
  CHECK(client.closed());
  CHECK_THAT(log.await("middle of a request"), Contains(client.local_text()));
  CHECK(TcpStore(server.endpoint(), ten_seconds()).num_keys() == 0);
}

TEST_CASE("StoreServer: any segmentation is fine, the handshake's included", "[net]") {
  ServerThread server;
  RawClient client(server.endpoint());
  for (char byte : encoded({validate_request(), ping_request(7), request_of(Opcode::kSet, "k", "v"),
                            request_of(Opcode::kGet, "k")})) {
    client.say({&byte, 1});  // TCP_NODELAY makes most of them a segment each
  }
  CHECK(client.hear(4 + 9) == std::string("\7\0\0\0\1\0\0\0\0\0\0\0v", 13));
}

TEST_CASE("StoreServer: half a request holds up nobody", "[net]") {
  ServerThread server;
  RawClient slow(server.endpoint());
  const std::string set = encoded({request_of(Opcode::kSet, "/k", "value")});
  slow.say(kHandshake + set.substr(0, 12));
  TcpStore store(server.endpoint(), ten_seconds());
  CHECK(store.add("n", 1) == 1);
  slow.say(set.substr(12));
  CHECK(store.get("k") == "value");
}

TEST_CASE("StoreServer: a client without a handshake is closed in time, an idle one is not",
          "[net]") {
  LogLines log;
  StoreServerOptions options;
  options.handshake_timeout = 50ms;
  ServerThread server(options);
  TcpStore idle(server.endpoint(), ten_seconds());
  RawClient mute(server.endpoint());
  CHECK(mute.closed());
  CHECK_THAT(log.await("no handshake in 50 ms"), Contains(mute.local_text()));
  idle.ping();
}

TEST_CASE("StoreServer: one client's requests that are here take turns with the others'", "[net]") {
  ServerThread server;
  std::vector<Request> requests(17, request_of_keys(Opcode::kWait, {"/a", "/never"}));
  requests.front() = validate_request();
  requests.push_back(ping_request(7));
  std::vector<std::unique_ptr<RawClient>> waiting;  // 16 waits each, no client may have more
  for (int i = 0; i < 64; ++i) {
    waiting.push_back(std::make_unique<RawClient>(server.endpoint()));
    waiting.back()->say(requests);
    REQUIRE(waiting.back()->hear(4) == std::string("\7\0\0\0", 4));
  }
  TcpStore store(server.endpoint(), ten_seconds());
  // Each of these is 70 bytes, and takes the server as long as 2,000 others.
  const std::vector<Request> one = {request_of(Opcode::kSet, "/a"),
                                    request_of(Opcode::kDeleteKey, "/a"),
                                    request_of_number(Opcode::kAdd, "/done", 1)};
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += encoded(one);
  RawClient floods(server.endpoint());
  floods.say(kHandshake + many);
  std::int64_t least = 1'000'000;
  for (int i = 0; i < 20; ++i) {
    const std::int64_t before = store.add("done", 0);
    least = std::min(least, store.add("done", 0) - before);
  }
  CHECK(least < 100);  // 900 requests are read at once
  CHECK(store.add("done", 0) < 10'000);
}

TEST_CASE("StoreServer: a short request waits for one longer one, however many clients send them",
          "[net]") {
  ServerHere server;
  const std::vector<std::string> names(2'000, "/key");
  Request longer = request_of_keys(Opcode::kCheck, {names.begin(), names.end()});
  std::vector<RawClient> waiting;
  SECTION("for its own keys") {}
  SECTION("for those who wait for its key") {
    longer = request_of(Opcode::kSet, "/key");
    std::vector<Request> requests(17, request_of_keys(Opcode::kWait, {"/key", "/never"}));
    requests.front() = validate_request();
    for (int i = 0; i < 64; ++i) {
      waiting.emplace_back(server.endpoint());
      waiting.back().say(requests);
    }
    server.io.poll();
  }
  std::vector<RawClient> clients;
  for (int i = 0; i < 50; ++i) {
    clients.emplace_back(server.endpoint());
    clients.back().say({validate_request(), longer, ping_request(1)});
  }
  RawClient asks(server.endpoint());
  asks.say({validate_request(), ping_request(2)});
  while (!asks.has_answer()) server.io.run_one();
  CHECK(std::ranges::count_if(clients, &RawClient::has_answer) <= 1);
  server.io.poll();
  CHECK(std::ranges::count_if(clients, &RawClient::has_answer) == 50);
}

TEST_CASE("StoreServer: others on its io thread have their turn between many short requests",
          "[net]") {
  ServerHere server;
  const std::vector<std::string> names(1'000, "/key");
  const Request short_one = request_of_keys(Opcode::kCheck, {names.begin(), names.end()});
  std::vector<RawClient> clients;
  for (int i = 0; i < 100; ++i) {
    clients.emplace_back(server.endpoint());
    clients.back().say({validate_request(), short_one});
  }
  while (std::ranges::none_of(clients, &RawClient::has_answer)) server.io.run_one();
  CHECK(std::ranges::count_if(clients, &RawClient::has_answer) < 20);
  server.io.poll();
  CHECK(std::ranges::count_if(clients, &RawClient::has_answer) == 100);
}

TEST_CASE("StoreServer: others on its io thread have their turn between parts of requests",
          "[net]") {
  ServerHere server;
  std::vector<RawClient> clients;
  for (int i = 0; i < 1'000; ++i) {
    clients.emplace_back(server.endpoint());
    clients.back().say({validate_request(), ping_request(1)});
  }
  server.io.poll();
  const std::string value(1'000'000, 'x');
  const std::string part = encoded(request_of(Opcode::kSet, "/key", value)).substr(0, 40'000);
  for (RawClient& each : clients) each.say(part);
  RawClient asks(server.endpoint());
  asks.say({validate_request(), ping_request(2)});
  int num_turns = 0;
  for (; !asks.has_answer(); ++num_turns) server.io.run_one();
  CHECK(num_turns > 2);
}

TEST_CASE("StoreServer: large requests wait, and nobody else does", "[net]") {
  ServerThread server;
  std::vector<std::string> names;
  for (int i = 0; i < 20'000; ++i) names.push_back("/" + std::to_string(i));
  const Request large = request_of_keys(Opcode::kCheck, {names.begin(), names.end()});
  RawClient asks(server.endpoint());
  asks.say({validate_request(), large});
  asks.hear(1);
  const Clock::time_point begin = Clock::now();
  asks.say({large, ping_request(1)});
  TcpStore store(server.endpoint(), ten_seconds());
  for (int i = 0; i < 100; ++i) store.ping();
  CHECK(Clock::now() - begin < 1s);
  CHECK(asks.hear(5) == std::string("\1\1\0\0\0", 5));
  CHECK(Clock::now() - begin > 1s);
}

TEST_CASE("StoreServer: the end of many waits at once counts as a large request", "[net]") {
  ServerThread server;
  std::vector<std::string> names;
  for (int i = 0; i < 20'000; ++i) names.push_back("/" + std::to_string(i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  {
    RawClient waits(server.endpoint());
    waits.say({validate_request()});
    for (std::size_t i = 0; i < keys.size(); i += 5'000) {  // none of them is large
      const auto first = keys.begin() + static_cast<std::ptrdiff_t>(i);
      waits.say({request_of_keys(Opcode::kWait, {first, first + 5'000})});
    }
    waits.say({ping_request(1)});
    waits.hear(4);
  }
  TcpStore store(server.endpoint(), ten_seconds());
  store.ping();
  RawClient asks(server.endpoint());
  const Clock::time_point begin = Clock::now();
  asks.say({validate_request(), request_of_keys(Opcode::kCheck, keys)});
  asks.hear(1);
  CHECK(Clock::now() - begin > 1s);
}

TEST_CASE("StoreServer: a client that never reads is closed, with the others served", "[net]") {
  LogLines log;
  StoreServerOptions options;
  options.stall_timeout = 100ms;
  ServerThread server(options);
  TcpStore store(server.endpoint(), ten_seconds());
  store.set("large", std::string(8 << 20, 'x'));
  store.ping();  // SET has no reply; this PING shows that it is done
  RawClient greedy(server.endpoint());
  greedy.shrink_receive_buffer();
  std::vector<Request> requests(100, request_of(Opcode::kGet, "/large"));
  requests.insert(requests.begin(), validate_request());
  greedy.say(requests);
  store.ping();
  CHECK_THAT(log.await("it doesn't read"), Contains(greedy.local_text()));
  CHECK(store.get("large").size() == 8 << 20);
  CHECK(server.stats().num_connections == 1);
}

TEST_CASE("StoreServer: a slow reader gets everything, in order", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), ten_seconds());
  std::string expected;
  std::vector<Request> requests = {validate_request()};
  std::vector<std::string> keys, values;
  for (int i = 0; i < 40; ++i) {
    keys.push_back("/" + std::to_string(i));
    // These sizes are copied, gathered and shared.
    values.push_back(std::string(std::size_t{1} << (i % 20), static_cast<char>('a' + i % 26)));
  }
  for (int i = 0; i < 40; ++i) {
    store.set(std::to_string(i), values[i]);
    requests.push_back(request_of(Opcode::kGet, keys[i]));
    append_vector(values[i], &expected);
  }
  store.ping();
  RawClient slow(server.endpoint());
  slow.shrink_receive_buffer();
  slow.say(requests);
  store.ping();
  std::string heard;
  while (heard.size() < expected.size()) {
    heard += slow.hear(std::min<std::size_t>(expected.size() - heard.size(), 100'000));
  }
  CHECK(heard == expected);
  // The server reads from it again.
  slow.say({ping_request(1)});
  CHECK(slow.hear(4) == std::string("\1\0\0\0", 4));
}

TEST_CASE("StoreServer: a client that reads in bursts is one slow reader", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), ten_seconds());
  store.set("large", std::string(8 << 20, 'x'));
  store.ping();
  RawClient slow(server.endpoint());
  slow.shrink_receive_buffer();
  slow.say({validate_request()});
  for (int i = 0; i < 10; ++i) {
    slow.say({request_of(Opcode::kGet, "/large")});
    slow.hear(8 + (8 << 20));
  }
  slow.say({ping_request(1)});
  slow.hear(4);  // it is no longer blocked
  CHECK(server.stats().num_slow_readers <= 1);
}

TEST_CASE("StoreServer: requests of a client that is not read wait in its own socket", "[net]") {
  ServerThread server;
  TcpStore store(server.endpoint(), ten_seconds());
  store.set("large", std::string(8 << 20, 'x'));
  store.ping();
  RawClient client(server.endpoint());
  client.shrink_receive_buffer();
  client.say({validate_request(), request_of(Opcode::kGet, "/large"),
              request_of(Opcode::kGet, "/large"), request_of_number(Opcode::kAdd, "/after", 1)});
  store.ping();
  store.ping();
  CHECK_FALSE(store.check({"after"}));
  client.hear(2 * (8 + (8 << 20)) + 8);
  CHECK(store.check({"after"}));
}

TEST_CASE("StoreServer: a writer beyond the memory cap is closed, also while it sends", "[net]") {
  StoreServerOptions options;
  options.max_total_bytes = 1 << 20;
  ServerThread server(options);
  TcpStore reader(server.endpoint(), ten_seconds());
  reader.set("k", std::string(600'000, 'x'));
  reader.ping();
  {
    LogLines log;
    TcpStore writer(server.endpoint(), ten_seconds());
    // This request is complete: the key space refuses it.
    writer.set("k2", std::string(500'000, 'x'));
    CHECK_THROWS_AS(writer.ping(), Error);
    CHECK_THAT(log.await("the store is full"), Contains("1048576"));
  }
  {
    LogLines log;
    RawClient writer(server.endpoint());
    writer.say(kHandshake + '\x01' + length(1) + 'k' + length(32 << 20));
    try {
      for (int i = 0; i < 320; ++i) writer.say(std::string(100'000, 'x'));
    } catch (const Error&) {
    }
    CHECK(log.await("being received") != "");
  }
  CHECK(reader.get("k").size() == 600'000);
  reader.delete_key("k");
  reader.set("k3", std::string(900'000, 'x'));
  CHECK(reader.get("k3").size() == 900'000);
}

TEST_CASE("StoreServer: takes connections that somebody else accepted", "[net]") {
  ServerThread server;
  const UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
  const Endpoint endpoint{"127.0.0.1", local_address(listener.get()).port()};
  std::thread front([&] {
    UniqueFd connection = accept_from(listener.get(), Deadline::after(10s));
    server.on_io_thread([&] { server.server().adopt(std::move(connection)); });
  });
  TcpStore store(endpoint, ten_seconds());
  front.join();
  store.set("k", "v");
  CHECK(TcpStore(server.endpoint(), ten_seconds()).get("k") == "v");
}

TEST_CASE("StoreServer: two servers are two key spaces", "[net]") {
  ServerThread one, two;
  TcpStore(one.endpoint(), ten_seconds()).add("k", 1);
  CHECK(TcpStore(two.endpoint(), ten_seconds()).add("k", 1) == 1);
}

TEST_CASE("StoreServer: connections that come and go leave nothing behind", "[net]") {
  ServerThread server;
  for (int i = 0; i < 200; ++i) {
    RawClient client(server.endpoint());
    client.say({validate_request(), request_of_keys(Opcode::kWait, {"/never"}), ping_request(1)});
    client.hear(4);
  }
  TcpStore store(server.endpoint(), ten_seconds());
  while (server.stats().num_connections > 1) store.ping();
  CHECK(store.num_keys() == 0);
}

// A child has a limit of its own. Its exit status: 0, or the line that failed.
TEST_CASE("StoreServer: it says once that it is out of descriptors and goes on later", "[net]") {
  const pid_t child = ::fork();  // The test program has only one thread here.
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto require = [](bool condition, int line) {
      if (!condition) ::_exit(line % 256);
    };
    const rlimit limit{40, 40};
    require(::setrlimit(RLIMIT_NOFILE, &limit) == 0, __LINE__);
    LogLines log;
    ServerThread server;
    // Both ends count. The client's sockets and the accepted ones use up all descriptors.
    const auto make_socket = [] {
      return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    };
    const SocketAddress address = resolve({"127.0.0.1", server.endpoint().port}).front();
    const auto connect = [&](const UniqueFd& fd) {
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length);
    };
    UniqueFd last = make_socket();  // it is connected when no descriptor is left to accept it
    std::vector<UniqueFd> clients;
    for (UniqueFd fd = make_socket(); fd; fd = make_socket()) {
      connect(fd);
      clients.push_back(std::move(fd));
    }
    connect(last);
    require(log.await("can't accept") != "", __LINE__);
    // Connections that were not accepted are taken as soon as others close.
    clients.clear();
    const Deadline deadline = Deadline::after(10s);
    const std::string hello = encoded({validate_request(), ping_request(9)});
    send_all(last.get(), hello.data(), hello.size(), deadline);
    char answer[4];
    receive_all(last.get(), answer, sizeof answer, deadline);
    require(answer[0] == 9, __LINE__);
    int said = 0;
    for (const std::string& line : log.all())
      said += line.find("can't accept") != std::string::npos;
    require(said == 1, __LINE__);
    server.kill();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

// accept(2) fails at once and always if somebody has shut the listener down.
TEST_CASE("StoreServer: a listener that fails is said once, others are served, later it is",
          "[net]") {
  LogLines log;
  ServerThread server;
  UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
  const UniqueFd same(::dup(listener.get()));
  server.on_io_thread([&] { server.server().listen(std::move(listener)); });
  REQUIRE(::shutdown(same.get(), SHUT_RDWR) == 0);
  REQUIRE(log.await("can't accept") != "");
  const auto is_answered = [](const Endpoint& endpoint) {
    const UniqueFd client = connect_to(endpoint, Deadline::after(10s));
    const std::string hello = encoded({validate_request(), ping_request(9)});
    send_all(client.get(), hello.data(), hello.size(), Deadline::after(10s));
    char answer[4];
    receive_all(client.get(), answer, sizeof answer, Deadline::after(10s));
    return answer[0] == 9;
  };
  for (int i = 0; i < 3; ++i) CHECK(is_answered(server.endpoint()));
  REQUIRE(::listen(same.get(), 10) == 0);  // it listens at another port
  CHECK(is_answered({"127.0.0.1", local_address(same.get()).port()}));
  CHECK(log.all().size() == 1);
}

TEST_CASE("StoreServer: nobody waits while the many keys of one that ends are freed", "[net]") {
  boost::asio::io_context io;
  std::optional<StoreServer> server(std::in_place, io, StoreServerOptions{});
  UniqueFd listener = listen_on(resolve({"127.0.0.1", 0}).front());
  const Endpoint endpoint{"127.0.0.1", local_address(listener.get()).port()};
  server->listen(std::move(listener));
  std::thread client([&] {
    TcpStore store(endpoint);
    for (int key = 0; key < kManyKeys; ++key) store.set(std::to_string(key), "");
    store.ping();
    io.stop();
  });
  io.run();
  client.join();
  REQUIRE(server->stats().num_keys >= kManyKeys);
  std::string large;
  double longest = cpu_seconds_of([&] { server.reset(); });
  int num_turns = 0;
  for (bool goes_on = true; goes_on; ++num_turns) {
    longest = std::max(longest, cpu_seconds_of([&] {
                         io.restart();
                         goes_on = io.poll_one() > 0;
                         large = std::string(10'000, 'x');  // glibc joins what was freed
                       }));
  }
  CHECK(num_turns >= kManyKeys / 1000);
  CHECK(longest < seconds_to_free_many_keys() / 2);
}

TEST_CASE("StoreServer: raises the soft limit of descriptors to the hard one", "[net]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit low{32, 64};
    rlimit now{};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) ::_exit(1);
    boost::asio::io_context io;
    StoreServer server(io, {});
    ::getrlimit(RLIMIT_NOFILE, &now);
    ::_exit(now.rlim_cur == 64 ? 0 : 2);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
}
