// SPDX-License-Identifier: Apache-2.0
// Something that is no etcd, or a broken one, behind the endpoint.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/socket.h"
#include "common/text.h"
#include "tests/rendezvous/ha/etcd_clients.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::ha::testing {
namespace {

using namespace std::chrono_literals;
using test::code_of;

// Hands each connection, one after another, to `serve` once a request has come. An exception of
// `serve` ends the connection.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd)> serve)
      : listener_(listen_on(resolve({"127.0.0.1", 0}).front())),
        serve_(std::move(serve)),
        thread_([this] { run(); }) {}
  ~FakeServer() {
    stopped_ = true;
    thread_.join();
  }
  Endpoint endpoint() const { return {"127.0.0.1", local_address(listener_.get()).port()}; }
  int num_requests() const { return num_requests_; }
  bool is_watched() const { return is_watched_; }  // by the newest request

 private:
  void run() {
    while (!stopped_) {
      try {
        const UniqueFd connection = accept_from(listener_.get(), Deadline::after(20ms));
        std::string head;
        char byte = 0;
        while (!head.ends_with("\r\n\r\n")) {
          receive_all(connection.get(), &byte, 1, Deadline::after(5s));
          head += byte;
        }
        std::string body(std::stoul(head.substr(head.find("Length: ") + 8)), ' ');
        receive_all(connection.get(), body.data(), body.size(), Deadline::after(5s));
        ++num_requests_;
        is_watched_ = head.starts_with("POST /v3/watch");
        serve_(connection.get());
      } catch (const Error&) {
      }
    }
  }

  UniqueFd listener_;
  const std::function<void(int)> serve_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> num_requests_{0};
  std::atomic<bool> is_watched_{false};
  std::thread thread_;
};

void say(int fd, const std::string& text) {
  send_all(fd, text.data(), text.size(), Deadline::after(5s));
}

std::string http_answer(const std::string& body, const char* status = "200 OK") {
  return concat("HTTP/1.1 ", status, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

// Checks the error code of each kind of call.
void check_all(EtcdClient& client, ErrorCode code, const std::string& part) {
  std::string what;
  const auto check = [&](auto call) {
    CHECK(code_of(call, &what) == code);
    CHECK_THAT(what, test::Contains(part));
    CHECK(what.find('\n') == std::string::npos);
  };
  check([&] { client.get("k"); });
  check([&] { client.get_prefix("k"); });
  check([&] { client.change_if({{"k", 0}}, {{"k", "v"}}); });
  check([&] { client.grant_lease(5s); });
  check([&] { client.keep_alive(7); });
  check([&] { client.revoke(7); });
  check([&] { client.await_erased("k", 1, Deadline::after(1h)); });
}

TEST_CASE("EtcdClient: garbage is a protocol error", "[net]") {
  for (const std::string& text : std::vector<std::string>{
           std::string("220 mail.example.com ESMTP\r\n"), http_answer("<html>"), http_answer("{}"),
           http_answer(R"({"header":{"revision":"-5"}})"),
           http_answer("Not Found\n", "404 Not Found"), http_answer(std::string(200'000, '{')),
           http_answer("", "301 Moved Permanently"),
           std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    CAPTURE(text.substr(0, 100));
    FakeServer server([&](int fd) { say(fd, text); });
    EtcdClient client(patient({server.endpoint()}));
    check_all(client, ErrorCode::kProtocol, "etcd: " + to_string(server.endpoint()) + ": ");
  }
}

TEST_CASE("EtcdClient: half an answer, or none and an end, is an endpoint in trouble", "[net]") {
  for (const std::string& text :
       std::vector<std::string>{std::string(), std::string("HTTP/1.1 200 OK\r\nConte"),
                                std::string("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"hea"),
                                http_answer("down", "502 Bad Gateway")}) {
    CAPTURE(text);
    FakeServer server([&](int fd) { say(fd, text); });
    EtcdClient client(hasty({server.endpoint()}));
    check_all(client, ErrorCode::kUnavailable, "etcd: " + to_string(server.endpoint()) + ": ");
  }
}

TEST_CASE("EtcdClient: a key that can't be watched is asked for again and again", "[net]") {
  const std::string there = http_answer(R"({"header":{"revision":"5"},"kvs":[{"key":"aw==",
      "create_revision":"1","mod_revision":"1","version":"1","value":"dg=="}],"count":"1"})");
  for (const std::string& text : std::vector<std::string>{
           std::string("junk\r\n"), http_answer("<html>"), http_answer("", "404 Not Found"),
           http_answer(R"({"result":{"header":{"revision":"5"},"canceled":true}})")}) {
    CAPTURE(text);
    std::unique_ptr<FakeServer> server;
    server =
        std::make_unique<FakeServer>([&](int fd) { say(fd, server->is_watched() ? text : there); });
    EtcdClient client(patient({server->endpoint()}));
    const auto begun = Clock::now();
    client.await_erased("k", 1, Deadline::after(500ms));
    CHECK(Clock::now() - begun >= 500ms);
    CHECK(server->num_requests() > 2);
    CHECK(server->num_requests() <= 2 * 11);  // with a pause of 50 ms
  }
}

TEST_CASE("EtcdClient: silence, before and inside an answer, ends within the limits", "[net]") {
  for (const std::string& text : std::vector<std::string>{
           std::string(), std::string("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"hea")}) {
    CAPTURE(text);
    FakeServer server([&](int fd) {
      say(fd, text);
      char byte = 0;
      while (true) receive_all(fd, &byte, 1, Deadline::after(5s));
    });
    EtcdClient client(hasty({server.endpoint()}));
    const auto begun = Clock::now();
    check_all(client, ErrorCode::kUnavailable, "no answer in ");
    CHECK(Clock::now() - begun < 7 * 1s);
  }
}

TEST_CASE("EtcdClient: an answer without end is cut off", "[net]") {
  FakeServer server([&](int fd) {
    say(fd, "HTTP/1.1 200 OK\r\n\r\n");
    const std::string much(1 << 20, ' ');
    for (int i = 0; i < 200; ++i) say(fd, much);
  });
  EtcdOptions options = patient({server.endpoint()});
  EtcdClient client(options);
  std::string what;
  CHECK(code_of([&] { client.get("k"); }, &what) == ErrorCode::kProtocol);
  CHECK_THAT(what, test::Contains("an answer without end"));
}

TEST_CASE("EtcdClient: a header without end is cut off, before a body and behind it", "[net]") {
  for (const std::string& begin : std::vector<std::string>{
           std::string("HTTP/1.1 200 OK\r\n"),
           std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")}) {
    CAPTURE(begin);
    std::atomic<int> num_sent{0};
    FakeServer server([&](int fd) {
      std::string fields;
      for (int i = 0; i < 1'000; ++i) fields += "a:\r\n";
      say(fd, begin);
      for (; num_sent < 20'000; ++num_sent) say(fd, fields);
    });
    EtcdClient client(patient({server.endpoint()}));
    std::string what;
    CHECK(code_of([&] { client.get("k"); }, &what) == ErrorCode::kProtocol);
    CHECK_THAT(what, test::Contains(": no HTTP: "));
    // It ends once the connection is closed; bytes in buffers had left before.
    CHECK(num_sent < 20'000);
  }
}

TEST_CASE("EtcdClient: an answer that trickles ends with the call's time", "[net]") {
  FakeServer server([&](int fd) {
    say(fd, "HTTP/1.1 200 OK\r\n\r\n");
    while (true) {
      say(fd, " ");
      std::this_thread::sleep_for(10ms);
    }
  });
  EtcdClient client(hasty({server.endpoint()}));
  const auto begun = Clock::now();
  CHECK(code_of([&] { client.get("k"); }) == ErrorCode::kUnavailable);
  CHECK(Clock::now() - begun < 10s);
}

TEST_CASE("EtcdClient: etcd's refusals are final, or tried again, by their kind", "[net]") {
  const auto refusal = [](int code, const char* message, const char* status) {
    return http_answer(
        concat("{\"error\":\"", message, "\",\"message\":\"", message, "\",\"code\":", code, "}"),
        status);
  };
  std::string what;
  FakeServer full([&](int fd) {
    say(fd, refusal(8, "etcdserver: mvcc: database space exceeded", "429 Too Many Requests"));
  });
  EtcdClient client(patient({full.endpoint()}));
  CHECK(code_of([&] { client.change_if({}, {{"k", "v"}}); }, &what) == ErrorCode::kUnavailable);
  CHECK_THAT(what, test::Contains("database space exceeded"));
  CHECK(full.num_requests() == 1);

  FakeServer headless(
      [&](int fd) { say(fd, refusal(14, "etcdserver: no leader", "503 Service Unavailable")); });
  EtcdClient other(hasty({headless.endpoint()}));
  const std::string no_leader = "etcdserver: no leader (HTTP 503)";
  CHECK_THAT(unavailable_of([&] { other.get("k"); }, no_leader), test::Contains(no_leader));
  CHECK(headless.num_requests() > 1);
}

TEST_CASE("EtcdClient: one that is wrong, dead or silent is left for the next", "[net]") {
  FakeServer garbage([](int fd) { say(fd, "what?\r\n"); });
  FakeServer silent([](int fd) {
    char byte = 0;
    while (true) receive_all(fd, &byte, 1, Deadline::after(5s));
  });
  FakeServer good([](int fd) { say(fd, http_answer(R"({"header":{"revision":"5"}})")); });
  const Endpoint dead = test::free_endpoints(1).front();
  EtcdOptions options = hasty({garbage.endpoint(), dead, silent.endpoint(), good.endpoint()});
  options.request_limit = 3s;
  options.call_limit = 30s;
  EtcdClient client(options);
  CHECK(client.get("k") == std::nullopt);
  const int before = garbage.num_requests() + silent.num_requests();
  for (int i = 0; i < 3; ++i) CHECK(client.get("k") == std::nullopt);
  CHECK(garbage.num_requests() + silent.num_requests() == before);
}

TEST_CASE("EtcdClient: names that can't be resolved, and a call that is cancelled", "[net]") {
  std::string what;
  EtcdOptions options = hasty({{"no-such-host.invalid", 2379}});
  CHECK(code_of([&] { EtcdClient(options).get("k"); }, &what) == ErrorCode::kUnavailable);
  CHECK_THAT(what, test::Contains("no-such-host.invalid"));

  FakeServer silent([](int fd) {
    char byte = 0;
    while (true) receive_all(fd, &byte, 1, Deadline::after(5s));
  });
  EtcdClient client(patient({silent.endpoint()}));
  std::thread cancels([&] {
    while (silent.num_requests() == 0) std::this_thread::yield();
    client.cancel();
  });
  const auto begun = Clock::now();
  CHECK(code_of([&] { client.get("k"); }) == ErrorCode::kAborted);
  CHECK(Clock::now() - begun < 4s);  // sooner than request_limit, 5 s
  cancels.join();
}

}  // namespace
}  // namespace ddprun::ha::testing
