// SPDX-License-Identifier: Apache-2.0
#include "common/socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    here.reset(ends[0]);
    there.reset(ends[1]);
  }
  FdMessage receive() { return receive_with_fd(there.get(), buffer.data(), buffer.size()); }
  std::string text(const FdMessage& message) const {
    return {buffer.data(), static_cast<std::size_t>(message.size)};
  }
  UniqueFd here, there;
  std::array<char, 64> buffer{};
};

}  // namespace

TEST_CASE("fd messages: bytes and a descriptor arrive together, closed on exec") {
  Pair pair;
  const UniqueFd memory(::memfd_create("x", MFD_CLOEXEC));
  REQUIRE(::write(memory.get(), "inside", 6) == 6);
  CHECK(send_with_fd(pair.here.get(), "bytes", memory.get()) == 5);
  const FdMessage message = pair.receive();
  CHECK(pair.text(message) == "bytes");
  REQUIRE(message.fd);
  CHECK_FALSE(message.lost_fd);
  CHECK((::fcntl(message.fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::array<char, 6> inside{};
  CHECK(::pread(message.fd.get(), inside.data(), 6, 0) == 6);
  CHECK(std::string(inside.data(), 6) == "inside");
}

TEST_CASE("fd messages: a message without a descriptor, no message, and the end are told apart") {
  Pair pair;
  CHECK(pair.receive().size == -1);
  CHECK(errno == EAGAIN);
  CHECK(send_with_fd(pair.here.get(), "bytes", -1) == 5);
  const FdMessage message = pair.receive();
  CHECK(pair.text(message) == "bytes");
  CHECK_FALSE(message.fd);
  CHECK_FALSE(message.lost_fd);
  pair.here.reset();
  CHECK(pair.receive().size == 0);
  CHECK(send_with_fd(pair.there.get(), "bytes", -1) == -1);  // and SIGPIPE doesn't come
  CHECK(errno == EPIPE);
}

TEST_CASE("fd messages: a process without room for the descriptor learns that there was one") {
  Pair pair;
  REQUIRE(send_with_fd(pair.here.get(), "bytes", STDERR_FILENO) == 5);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const FdMessage message = pair.receive();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(message.size == 5);
  CHECK(message.lost_fd);
  CHECK_FALSE(message.fd);
}
