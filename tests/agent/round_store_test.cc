// SPDX-License-Identifier: Apache-2.0
#include "agent/round_store.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "common/error.h"
#include "common/socket.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using ddprun::agent::RoundStore;
using namespace std::chrono_literals;
using ddprun::test::Contains;

namespace {

bool somebody_listens(std::uint16_t port) {
  try {
    connect_to({.host = "127.0.0.1", .port = port}, Deadline::after(20ms));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("round store: the next round's port is bound while this round's is served", "[net]") {
  boost::asio::io_context io;
  RoundStore store(io);
  const std::uint16_t first = store.bind("127.0.0.1", 0);
  store.serve(1, false);
  const std::uint16_t second = store.bind("127.0.0.1", 0);
  CHECK(first != second);
  CHECK(somebody_listens(first));
  store.close(2);  // another round's store: nothing closes
  CHECK(somebody_listens(first));
  store.close(1);
  CHECK_FALSE(somebody_listens(first));
  CHECK(somebody_listens(second));
}

TEST_CASE("round store: a port asked for by number is kept from round to round", "[net]") {
  boost::asio::io_context io;
  std::uint16_t port = 0;
  {
    RoundStore probe(io);
    port = probe.bind("127.0.0.1", 0);
  }
  RoundStore store(io);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    CHECK(store.bind("127.0.0.1", port) == port);
    store.serve(round, false);
    CHECK(somebody_listens(port));
  }
}

TEST_CASE("round store: a port in use is an error that names it", "[net]") {
  boost::asio::io_context io;
  const UniqueFd foreign = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  const std::uint16_t port = local_address(foreign.get()).port();
  RoundStore store(io);
  CHECK_THROWS_WITH(
      store.bind("127.0.0.1", port),
      Contains(std::to_string(port)) && Contains(", pid " + std::to_string(::getpid())));
}

TEST_CASE("round store: a lack of descriptors is said when it is bound, never when it is served",
          "[net]") {
  boost::asio::io_context io;
  RoundStore store(io);
  RoundStore late(io);
  const std::uint16_t port = store.bind("127.0.0.1", 0);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit few{.rlim_cur = 64, .rlim_max = limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<UniqueFd> taken;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.emplace_back(fd);
  REQUIRE(errno == EMFILE);
  store.serve(1, false);
  CHECK(ddprun::test::code_of([&] { late.bind("127.0.0.1", 0); }) == ErrorCode::kResourceExhausted);
  taken.clear();
  ::setrlimit(RLIMIT_NOFILE, &limit);
  CHECK(somebody_listens(port));
}
