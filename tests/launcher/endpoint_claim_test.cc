// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_claim.h"

#include <dlfcn.h>
#include <netdb.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <future>
#include <thread>

#include "common/error.h"
#include "rendezvous/daemon/daemon.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace {

constexpr char kName[] = "meeting-point.test";
std::atomic<int> num_answers{1};  // answers that the name service still gives about kName
std::promise<void> test_is_over;  // a silent name service is silent until then
const std::shared_future<void> end_of_test = test_is_over.get_future();

struct AtEnd {
  ~AtEnd() { test_is_over.set_value(); }
} const at_end;

}  // namespace

// Replaces the C library's function. kName is 127.0.0.1 at first; after that the name service is
// silent.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::string(host) != kName) return real(host, service, hints, found);
  if (num_answers.fetch_sub(1) > 0) return real("127.0.0.1", service, hints, found);
  const auto end = end_of_test;  // this thread may outlive static objects
  end.wait_for(std::chrono::seconds(60));
  return EAI_AGAIN;
}

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

RendezvousPlan plan_for(std::uint16_t port) {
  RendezvousPlan plan;
  plan.endpoint = {.host = kName, .port = port};
  return plan;
}

// While one of these lives, no step may wait for the name service.
class Quick {
 public:
  ~Quick() { CHECK(Clock::now() - begun_ < 15s); }

 private:
  const Clock::time_point begun_ = Clock::now();
};

// A rendezvous on a port of 127.0.0.1, on a thread of its own.
class ServedDaemon {
 public:
  ServedDaemon()
      : daemon_(io_, rendezvous::bind_endpoint({.host = "127.0.0.1", .port = 0}), {}),
        thread_([this] { io_.run(); }) {}
  ~ServedDaemon() {
    io_.stop();
    thread_.join();
  }
  std::uint16_t port() const { return daemon_.port(); }

 private:
  boost::asio::io_context io_;
  rendezvous::Daemon daemon_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("claim_endpoint: a name is looked up once, the service may be silent afterwards",
          "[net]") {
  const Quick quick;
  num_answers = 1;
  const EndpointClaim claim = claim_endpoint(plan_for(0), 1, Deadline::after(10s));
  REQUIRE(claim.listeners.size() == 1);
  CHECK(local_address(claim.listeners.front().get()).port() == claim.connect_to.port);
  CHECK_FALSE(claim.contested);
}

TEST_CASE("claim_endpoint: a silent name service takes until the deadline, then it is not ours",
          "[net]") {
  const Quick quick;
  num_answers = 0;
  const EndpointClaim claim = claim_endpoint(plan_for(29400), 2, Deadline::after(100ms));
  CHECK(claim.listeners.empty());
  CHECK(claim.connect_to.host == kName);
}

TEST_CASE("claim_again: takes the port that has become free with no look-up", "[net]") {
  const Quick quick;
  num_answers = 1;
  EndpointClaim claim;
  std::uint16_t port = 0;
  {
    const ServedDaemon earlier;
    port = earlier.port();
    claim = claim_endpoint(plan_for(port), 1, Deadline::after(10s));
    CHECK(claim.contested);
    CHECK(claim.listeners.empty());
    CHECK(claim_again(plan_for(port), claim).empty());
  }
  const auto listeners = claim_again(plan_for(port), claim);
  REQUIRE(listeners.size() == 1);
  CHECK(local_address(listeners.front().get()).port() == port);
}

TEST_CASE("claim_endpoint: a port that somebody else has is refused, and the holder named",
          "[net]") {
  const Quick quick;
  num_answers = 1;
  const auto mute = rendezvous::bind_endpoint({.host = "127.0.0.1", .port = 0});
  const std::uint16_t port = local_address(mute.front().get()).port();
  CHECK_THROWS_WITH(claim_endpoint(plan_for(port), 1, Deadline::after(10s)),
                    ddprun::test::Contains("in use"));
}

}  // namespace ddprun::launcher
