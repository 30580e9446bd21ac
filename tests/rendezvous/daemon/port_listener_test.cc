// SPDX-License-Identifier: Apache-2.0
// A daemon's port when accept(2) fails, when the taker of a connection fails, or when Asio reports
// another descriptor's event. This program's accept4() fails as a test says.
#include "rendezvous/daemon/port_listener.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"

namespace {
std::atomic<int> accept_error = 0;  // 0: as the kernel does
std::atomic<int> num_failed = 0;
}  // namespace

extern "C" int accept4(int listener, sockaddr* peer, socklen_t* length, int flags) {
  if (accept_error == 0) {
    return static_cast<int>(::syscall(SYS_accept4, listener, peer, length, flags));
  }
  ++num_failed;
  errno = accept_error;
  return -1;
}

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::run_until;

// Tries in a row if the failure may be one connection's alone.
constexpr std::size_t kMostPerTry = 64;

// A listener, and the connections that it has taken.
struct Port {
  explicit Port(std::string what_fails = {}) : failure(std::move(what_fails)) {
    auto listeners = bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0});
    endpoint.port = local_address(listeners.front().get()).port();
    newcomers = std::make_shared<PendingHandshakes>(io, PendingHandshakes::Options{});
    const auto take = [this](UniqueFd connection, const Newcomer&) {
      if (!failure.empty()) throw std::runtime_error(failure);
      taken.push_back(std::move(connection));
    };
    listener = std::make_shared<PortListener>(io, PortListener::Options{}, newcomers, take, take,
                                              PortListener::Take());
    listener->start(std::move(listeners));
  }
  ~Port() {
    accept_error = 0;
    newcomers->stop();
    listener->stop();
  }
  UniqueFd client() {
    UniqueFd connection = connect_to(endpoint, Deadline::after(5s));
    send_all(connection.get(), "GET", 3, Deadline::after(5s));
    return connection;
  }
  bool takes(std::size_t number) {
    return run_until(io, [&] { return taken.size() >= number; });
  }

  std::string failure;
  boost::asio::io_context io{1};
  Endpoint endpoint{.host = "127.0.0.1", .port = 0};
  std::shared_ptr<PendingHandshakes> newcomers;
  std::shared_ptr<PortListener> listener;
  std::vector<UniqueFd> taken;
};

std::size_t num_with(const test::LogLines& log, const std::string& text) {
  const auto lines = log.all();
  return static_cast<std::size_t>(std::ranges::count_if(
      lines, [&](const auto& line) { return line.find(text) != std::string::npos; }));
}

TEST_CASE("PortListener: an error of accept is said once, never spins, and ends nothing") {
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM, EINVAL, EPERM, EIO, ECONNABORTED}) {
    CAPTURE(errno_text(error));
    const test::LogLines log;
    Port port;
    num_failed = 0;
    accept_error = error;
    const UniqueFd client = port.client();
    REQUIRE(run_until(port.io, [] { return num_failed > 0; }));
    const int before = num_failed.load();
    port.io.restart();
    CHECK(port.io.run_for(250ms) < 20);
    CHECK(static_cast<std::size_t>(num_failed.load() - before) <= 4 * kMostPerTry);
    CHECK(run_until(port.io, [&] { return num_failed > before; }));  // it goes on trying
    CHECK(num_with(log, "can't accept more connections now: " + errno_text(error)) == 1);
    accept_error = 0;
    CHECK(port.takes(1));
  }
}

TEST_CASE("PortListener: an exception of one connection's taker ends that connection alone") {
  const test::LogLines log;
  Port port("no more memory");
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(port.client());
  const auto is_said = [&] { return num_with(log, "can't accept more") > 0; };
  REQUIRE(run_until(port.io, is_said));
  port.failure.clear();
  CHECK(port.takes(1));
  CHECK(num_with(log, "can't accept more connections now: no more memory") == 1);
}

TEST_CASE("PortListener: a silent connection outlives the event of a descriptor closed before it") {
  Port port;
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd other(ends[1]);
  boost::asio::posix::stream_descriptor closed(port.io, ends[0]);
  const UniqueFd client = connect_to(port.endpoint, Deadline::after(5s));
  send_all(other.get(), "x", 1, Deadline::after(5s));
  // This runs when Asio has fetched both events and handled neither. The accepted connection then
  // gets the state of `closed`, whose event comes after the listener's.
  boost::asio::post(port.io, [&] { closed.close(); });
  REQUIRE(run_until(port.io, [&] { return port.listener->num_silent() == 1; }));
  port.io.restart();
  port.io.poll();
  CHECK(port.listener->num_silent() == 1);
  send_all(client.get(), "GET", 3, Deadline::after(5s));
  CHECK(port.takes(1));
}

}  // namespace
}  // namespace ddprun::rendezvous
