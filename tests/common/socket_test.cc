// SPDX-License-Identifier: Apache-2.0
#include "common/socket.h"

#include <string>

#include "common/error.h"
#include "tests/support/accept_from.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::test::code_of;
using ddprun::test::Contains;

namespace {

UniqueFd loopback_listener() { return listen_on(resolve({"127.0.0.1", 0}).front()); }

}  // namespace

TEST_CASE("socket: bytes go through, both ends named numerically", "[net]") {
  const UniqueFd listener = loopback_listener();
  const Deadline deadline = Deadline::after(5s);
  const Endpoint here{"127.0.0.1", local_address(listener.get()).port()};
  const UniqueFd client = connect_to(here, deadline);
  const UniqueFd server = accept_from(listener.get(), deadline);
  send_all(client.get(), "hello", 5, deadline);
  std::string text(5, '\0');
  receive_all(server.get(), text.data(), text.size(), deadline);
  CHECK(text == "hello");
  CHECK(peer_address(client.get()).text() == to_string(here));
}

TEST_CASE("socket: a mute peer ends in a timeout, a closed one in a lost connection", "[net]") {
  const UniqueFd listener = loopback_listener();
  const Endpoint here{"127.0.0.1", local_address(listener.get()).port()};
  const UniqueFd client = connect_to(here, Deadline::after(5s));
  UniqueFd server = accept_from(listener.get(), Deadline::after(5s));
  char byte;
  CHECK(code_of([&] { receive_all(client.get(), &byte, 1, Deadline::after(20ms)); }) ==
        ErrorCode::kTimeout);
  server.reset();
  CHECK(code_of([&] { receive_all(client.get(), &byte, 1, Deadline::after(5s)); }) ==
        ErrorCode::kConnectionLost);
}

TEST_CASE("socket: a refused endpoint says who was tried", "[net]") {
  std::uint16_t port;
  {
    const UniqueFd listener = loopback_listener();
    port = local_address(listener.get()).port();
  }
  try {
    connect_to({"127.0.0.1", port}, Deadline::after(50ms));
    FAIL("connected to nobody");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    CHECK_THAT(error.what(), Contains("127.0.0.1:" + std::to_string(port)));
    CHECK_THAT(error.what(), Contains("refused"));
  }
}

TEST_CASE("socket: an address that drops packets leaves time for the next one", "[net]") {
  // Fills the listener's queue: the kernel then drops new connections.
  const UniqueFd deaf = loopback_listener();
  REQUIRE(::listen(deaf.get(), 0) == 0);
  const SocketAddress deaf_address = local_address(deaf.get());
  std::vector<UniqueFd> queue;
  std::string failure;
  for (;;) {
    UniqueFd fd = connect_to_any({deaf_address}, 1s, Deadline::after(100ms), &failure);
    if (!fd) break;
    queue.push_back(std::move(fd));
    REQUIRE(queue.size() < 100);
  }
  CHECK_THAT(failure, Contains(deaf_address.text() + ": no answer"));
  const UniqueFd listener = loopback_listener();
  const SocketAddress good = local_address(listener.get());
  const Clock::time_point begin = Clock::now();
  const UniqueFd fd =
      connect_to_any({deaf_address, deaf_address, good}, 60s, Deadline::after(3s), &failure);
  REQUIRE(fd);
  CHECK(peer_address(fd.get()).text() == good.text());
  CHECK(Clock::now() - begin < 3s);
  CHECK(connect_to_any({deaf_address, good}, 50ms, Deadline::after(60s), &failure));
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("socket: an address is local where an interface has it", "[net]") {
  CHECK(is_local_address(resolve({"127.0.0.1", 1}).front()));
  CHECK_FALSE(is_local_address(resolve({"192.0.2.1", 1}).front()));
}

TEST_CASE("socket: a taken port is reported as in use", "[net]") {
  const UniqueFd listener = loopback_listener();
  CHECK(code_of([&] { listen_on(local_address(listener.get())); }) == ErrorCode::kUnavailable);
}
