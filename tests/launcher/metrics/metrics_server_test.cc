// SPDX-License-Identifier: Apache-2.0
#include "launcher/metrics/metrics_server.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <string>

#include "common/clock.h"
#include "common/socket.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Contains;

// The server and its clients on one thread, so neither may wait for the other.
class Served {
 public:
  explicit Served(MetricsServer::Options options = {}) {
    std::vector<UniqueFd> listeners;
    listeners.push_back(listen_on(resolve({.host = "127.0.0.1", .port = 0}).front()));
    port_ = local_address(listeners.front().get()).port();
    server = std::make_unique<MetricsServer>(
        io, std::move(listeners),
        [this](metrics::Format format) {
          ++num_pages;
          return std::string(format == metrics::Format::kText ? "text\n" : "open\n");
        },
        options);
  }

  UniqueFd connect() const {
    return connect_to({.host = "127.0.0.1", .port = port_}, Deadline::after(seconds{10}));
  }
  UniqueFd send(const std::string& text) const {
    UniqueFd client = connect();
    send_all(client.get(), text.data(), text.size(), Deadline::after(seconds{10}));
    return client;
  }
  // All bytes that come until the server ends the connection.
  std::string answer_to(const UniqueFd& client) {
    std::string text;
    const auto deadline = Deadline::after(seconds{30});
    while (!deadline.expired()) {
      io.run_one_for(milliseconds{1});
      char part[4096];
      const SocketStep step = receive_step(client.get(), part, sizeof part);
      text.append(part, step.num_bytes);
      if (!step.ended.empty()) return text;
    }
    FAIL("the server did not end the connection");
    return text;
  }
  std::string get(const std::string& target, const std::string& header = "") {
    return answer_to(send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n"));
  }

  boost::asio::io_context io;
  std::unique_ptr<MetricsServer> server;
  int num_pages = 0;

 private:
  std::uint16_t port_ = 0;
};

}  // namespace

TEST_CASE("MetricsServer: its two pages, in the format that is asked for") {
  Served served;
  const std::string page = served.get("/metrics");
  CHECK_THAT(page, Contains("HTTP/1.1 200 OK\r\n") && Contains("\r\n\r\ntext\n"));
  CHECK_THAT(page, Contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  CHECK_THAT(served.get("/metrics?a=b", "Accept: application/openmetrics-text\r\n"),
             Contains("application/openmetrics-text") && Contains("\r\n\r\nopen\n"));
  CHECK_THAT(served.get("/healthz"), Contains(" 200 OK\r\n") && Contains("\r\n\r\nok\n"));
  CHECK(served.num_pages == 2);
}

TEST_CASE("MetricsServer: a client that asks without end has the last page again") {
  Served served({.max_age = seconds{3600}});
  for (int i = 0; i < 5; ++i) CHECK_THAT(served.get("/metrics"), Contains("\r\n\r\ntext\n"));
  CHECK(served.num_pages == 1);
  Served fresh({.max_age = milliseconds{-1}});
  for (int i = 0; i < 3; ++i) fresh.get("/metrics");
  CHECK(fresh.num_pages == 3);
}

TEST_CASE(
    "MetricsServer: other requests are refused, and bytes that are no request end the connection") {
  Served served;
  CHECK_THAT(served.get("/"), Contains(" 404 "));
  CHECK_THAT(served.get("/metrics/"), Contains(" 404 "));
  for (const char* method : {"POST", "PUT", "HEAD", "DELETE", "OPTIONS", "BREW"}) {
    CAPTURE(method);
    const std::string answer =
        served.answer_to(served.send(std::string(method) + " /metrics HTTP/1.1\r\n\r\n"));
    CHECK_THAT(answer, Contains(" 405 ") && Contains("Allow: GET\r\n"));
  }
  CHECK(served.answer_to(served.send("\x16\x03\x01 hello\r\n\r\n")).empty());
  CHECK(served.answer_to(served.send("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n")).empty());
  CHECK(served.num_pages == 0);
}

TEST_CASE("MetricsServer: it answers those who ask for this machine over loopback") {
  Served served;
  const auto asked_as = [&](const std::string& host) {
    return served.answer_to(served.send("GET /metrics HTTP/1.1\r\nHost: " + host + "\r\n\r\n"));
  };
  CHECK_THAT(asked_as("127.0.0.1:9410"), Contains("200 OK"));
  CHECK_THAT(asked_as("evil.test:9410"),
             Contains("403 Forbidden") && Contains("its Host is no name of this machine"));
}

TEST_CASE("MetricsServer: a header has its bound, in bytes and in fields") {
  Served served;
  const std::string begin = "GET /metrics HTTP/1.1\r\n";
  CHECK(served.answer_to(served.send(begin + "a: " + std::string(9000, 'x'))).empty());
  std::string fields;
  for (int i = 0; i < 200; ++i) fields += "a:b\r\n";
  CHECK(served.answer_to(served.send(begin + fields + "\r\n")).empty());
  CHECK(served.num_pages == 0);
  CHECK_THAT(served.get("/metrics", "a: " + std::string(6000, 'x') + "\r\n"), Contains(" 200 "));
}

TEST_CASE("MetricsServer: a client that says nothing, or half of a request, is cut off in time") {
  Served served({.timeout = milliseconds{50}});
  CHECK(served.answer_to(served.connect()).empty());
  CHECK(served.answer_to(served.send("GET /metr")).empty());
  CHECK_THAT(served.get("/healthz"), Contains(" 200 "));
}

TEST_CASE("MetricsServer: one connection too many ends the oldest, and is served") {
  Served served({.max_connections = 4});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 4; ++i) {
    silent.push_back(served.connect());
    served.io.run_one_for(milliseconds{1000});
  }
  CHECK_THAT(served.get("/metrics"), Contains(" 200 "));
  CHECK(served.answer_to(silent.front()).empty());
  send_all(silent.back().get(), "GET /healthz HTTP/1.0\r\n\r\n", 25, Deadline::after(seconds{10}));
  CHECK_THAT(served.answer_to(silent.back()), Contains(" 200 "));
}

TEST_CASE("MetricsServer: it waits for a descriptor if there is none, and doesn't spin") {
  Served served;
  const UniqueFd client = served.send("GET /metrics HTTP/1.1\r\n\r\n");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd next(::fcntl(client.get(), F_DUPFD_CLOEXEC, 0));  // the lowest free descriptor
  REQUIRE(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next.get()) + 1;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::size_t num_events = 0;
  const auto until = Deadline::after(milliseconds{150});
  while (!until.expired()) num_events += served.io.run_one_for(milliseconds{20});
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(num_events < 20);
  CHECK_THAT(served.answer_to(client), Contains(" 200 "));
}

TEST_CASE("MetricsServer: nobody is answered once it is destroyed") {
  Served served;
  const UniqueFd client = served.send("GET /metrics HTTP/1.1\r\n");  // a part of a request
  while (served.io.run_one_for(milliseconds{20}) > 0) {
  }
  served.server.reset();
  CHECK(served.answer_to(client).empty());
  CHECK(served.num_pages == 0);
}

}  // namespace ddprun::launcher
