// SPDX-License-Identifier: Apache-2.0
#include "common/peer_user.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "common/clock.h"
#include "common/socket.h"
#include "common/text.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::test::Contains;

namespace {

constexpr uid_t kStranger = 12345, kService = 61200;

// As systemd keeps it while it gives out the user.
class DynamicUserLock {
 public:
  explicit DynamicUserLock(uid_t user) : path_(concat("/run/systemd/dynamic-uid/", user)) {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    UniqueFd lock(::open(path_.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    REQUIRE(lock);  // else systemd has given it out here
  }
  ~DynamicUserLock() { ::unlink(path_.c_str()); }

 private:
  const std::string path_;
};

// Calls `body` with a client's end of a connection to a listener of `user`. `accepts`: the listener
// has accepted it.
void with_server_of(uid_t user, bool accepts, const std::function<void(int)>& body) {
  const UniqueFd listener = [&] {
    REQUIRE(::seteuid(user) == 0);  // the listener then belongs to that user
    UniqueFd made = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
    REQUIRE(::seteuid(0) == 0);
    return made;
  }();
  const UniqueFd client = connect_to(
      {.host = "127.0.0.1", .port = local_address(listener.get()).port()}, Deadline::after(5s));
  UniqueFd accepted;
  if (accepts) {
    REQUIRE(::seteuid(user) == 0);
    while (!accepted)
      accepted = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(::seteuid(0) == 0);
  }
  body(client.get());
}

}  // namespace

TEST_CASE("peer_user: a client over loopback is known as long as it is there", "[net]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root is two users");
  const UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  const std::uint16_t port = local_address(listener.get()).port();
  for (const uid_t user : {kStranger, uid_t{0}}) {
    CAPTURE(user);
    REQUIRE(::seteuid(user) == 0);
    UniqueFd client = connect_to({.host = "127.0.0.1", .port = port}, Deadline::after(5s));
    REQUIRE(::seteuid(0) == 0);
    UniqueFd accepted;
    while (!accepted)
      accepted = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    CHECK(loopback_client(accepted.get()) == user);
    CHECK(loopback_client_problem(accepted.get(), kStranger) == "");
    CHECK(loopback_client_problem(accepted.get(), 54321) ==
          (user == 0 ? ""
                     : "without a token only programs of user 54321 and root are served here over "
                       "loopback, and this one is of user 12345"));
    client.reset();
    CHECK(loopback_client(accepted.get()) == kNobody);
    CHECK_THAT(loopback_client_problem(accepted.get(), kStranger), Contains("it has gone"));
  }
}

TEST_CASE("peer_user: a server that is bound to a device is known, too", "[net]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root is two users");
  REQUIRE(::seteuid(kStranger) == 0);
  const UniqueFd listener = listen_on(resolve({.host = "127.0.0.1", .port = 0}).front());
  REQUIRE(::setsockopt(listener.get(), SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) == 0);
  REQUIRE(::seteuid(0) == 0);
  const UniqueFd client = connect_to(
      {.host = "127.0.0.1", .port = local_address(listener.get()).port()}, Deadline::after(5s));
  CHECK_THAT(stranger_problem(client.get()), Contains("is a program of user 12345"));
}

TEST_CASE("peer_user: a server of MPTCP, which is another list of the kernel's, is not obeyed",
          "[net]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root is two users");
  constexpr int kMptcp = 262;
  REQUIRE(::seteuid(kStranger) == 0);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, kMptcp));
  REQUIRE(::seteuid(0) == 0);
  if (!listener) DDPRUN_SKIP("the kernel has no MPTCP");
  SocketAddress address = resolve({.host = "127.0.0.1", .port = 0}).front();
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                 address.length) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  const UniqueFd client = connect_to(
      {.host = "127.0.0.1", .port = local_address(listener.get()).port()}, Deadline::after(5s));
  CHECK(stranger_problem(client.get()) != "");
  CHECK(commander_problem(client.get()) != "");
}

TEST_CASE("peer_user: another user's server is a stranger before and after it accepts", "[net]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root is two users");
  for (const bool accepts : {false, true}) {
    CAPTURE(accepts);
    with_server_of(kStranger, accepts, [&](int client) {
      CHECK(peer_user(client) == (accepts ? std::optional<uid_t>(kStranger) : std::nullopt));
      CHECK_THAT(stranger_problem(client), Contains("is a program of user 12345"));
      CHECK_THAT(commander_problem(client), Contains("is a program of user 12345"));
    });
    for (const uid_t user : {uid_t{0}, kService}) {
      const DynamicUserLock lock(kService);
      with_server_of(user, accepts, [&](int client) {
        CHECK(stranger_problem(client) == "");
        CHECK(commander_problem(client) == "");
      });
    }
    with_server_of(kService, accepts, [&](int client) {
      CHECK_THAT(stranger_problem(client), Contains("is a program of user 61200"));
    });
  }
}
