// SPDX-License-Identifier: Apache-2.0
#include "common/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "common/error.h"
#include "common/random_id.h"
#include "tests/support/catch.h"
#include "tests/support/forked_child.h"

using namespace ddprun;

namespace {

// Runs `check` in a child, because a service manager's variables are those of a whole process. 0:
// it was true.
int in_child(const std::function<bool()>& check) {
  return test::run_forked([&] { ::_exit(check() ? 0 : 1); }).status;
}

class Inbox {
 public:
  Inbox() : name_("@ddprun-" + random_id()) {
    socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data() + 1, name_.size() - 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  }
  const std::string& name() const { return name_; }
  std::string next() const {
    std::array<char, 256> buffer{};
    const auto size = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    return size < 0 ? "nothing" : std::string(buffer.data(), static_cast<std::size_t>(size));
  }

 private:
  std::string name_;
  UniqueFd socket_;
};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

std::string refusal() {
  try {
    ServiceManager::take_from_environment();
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("ServiceManager: nothing is said and nothing is wanted without one") {
  CHECK(in_child([] {
          for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"})
            ::unsetenv(name);
          ServiceManager manager = ServiceManager::take_from_environment();
          manager.tell("READY=1");
          return !manager.watchdog_limit() && manager.take_sockets().empty();
        }) == 0);
}

TEST_CASE("ServiceManager: tell() sends one datagram, and NOTIFY_SOCKET leaves the environment") {
  const Inbox inbox;
  CHECK(in_child([&] {
          set("NOTIFY_SOCKET", inbox.name());
          const ServiceManager manager = ServiceManager::take_from_environment();
          manager.tell("READY=1\nSTATUS=leads");
          return std::getenv("NOTIFY_SOCKET") == nullptr;
        }) == 0);
  CHECK(inbox.next() == "READY=1\nSTATUS=leads");
  CHECK(inbox.next() == "nothing");
}

TEST_CASE("ServiceManager: a manager that is gone, or reads nothing, keeps nobody waiting") {
  const Inbox inbox;
  CHECK(in_child([&] {
          set("NOTIFY_SOCKET", inbox.name());
          const ServiceManager manager = ServiceManager::take_from_environment();
          for (int i = 0; i < 10'000; ++i) manager.tell("WATCHDOG=1");
          set("NOTIFY_SOCKET", "@ddprun-nobody");
          ServiceManager::take_from_environment().tell("READY=1");
          return true;
        }) == 0);
  CHECK(inbox.next() == "WATCHDOG=1");
}

TEST_CASE("ServiceManager: the watchdog is meant for one process") {
  CHECK(in_child([] {
          set("WATCHDOG_USEC", "30000000");
          set("WATCHDOG_PID", std::to_string(::getpid()));
          const auto limit = ServiceManager::take_from_environment().watchdog_limit();
          return limit == std::chrono::seconds(30) && std::getenv("WATCHDOG_PID") == nullptr;
        }) == 0);
  CHECK(in_child([] {
          set("WATCHDOG_USEC", "30000000");
          set("WATCHDOG_PID", std::to_string(::getppid()));
          return !ServiceManager::take_from_environment().watchdog_limit();
        }) == 0);
}

TEST_CASE("ServiceManager: sockets come in order, with their names, and no child has them") {
  CHECK(in_child([] {
          const int pipe_end = ::open("/dev/null", O_RDONLY);
          ::dup2(pipe_end, 3);
          ::dup2(pipe_end, 4);
          set("LISTEN_FDS", "2");
          set("LISTEN_PID", std::to_string(::getpid()));
          set("LISTEN_FDNAMES", "ddprund.socket:other");
          ServiceManager manager = ServiceManager::take_from_environment();
          const auto sockets = manager.take_sockets();
          return sockets.size() == 2 && sockets[0].name == "ddprund.socket" &&
                 sockets[0].fd.get() == 3 && sockets[1].name == "other" &&
                 (::fcntl(4, F_GETFD) & FD_CLOEXEC) != 0 && manager.take_sockets().empty() &&
                 std::getenv("LISTEN_FDS") == nullptr;
        }) == 0);
}

TEST_CASE("ServiceManager: sockets of another process are not touched") {
  CHECK(in_child([] {
          ::dup2(::open("/dev/null", O_RDONLY), 3);
          set("LISTEN_FDS", "1");
          set("LISTEN_PID", std::to_string(::getppid()));
          const bool none = ServiceManager::take_from_environment().take_sockets().empty();
          return none && ::fcntl(3, F_GETFD) >= 0;
        }) == 0);
}

TEST_CASE("ServiceManager: an invalid variable is one line that names it") {
  CHECK(in_child([] {
          set("NOTIFY_SOCKET", "relative/path");
          const bool socket = has(refusal(), "NOTIFY_SOCKET='relative/path'");
          set("NOTIFY_SOCKET", "/" + std::string(200, 'x'));
          const bool is_long = has(refusal(), "NOTIFY_SOCKET='/xxx");
          set("WATCHDOG_USEC", "soon");
          const bool watchdog = has(refusal(), "WATCHDOG_USEC='soon' is no number");
          set("LISTEN_PID", std::to_string(::getpid()));
          set("LISTEN_FDS", "900");
          const bool closed = has(refusal(), "is not open");
          set("LISTEN_PID", std::to_string(::getpid()));
          set("LISTEN_FDS", "99999999999999999999");
          return socket && is_long && watchdog && closed && has(refusal(), "LISTEN_FDS");
        }) == 0);
}
