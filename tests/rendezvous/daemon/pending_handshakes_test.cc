// SPDX-License-Identifier: Apache-2.0
// PendingHandshakes that make way for others before anybody has said who they are.
#include "rendezvous/daemon/pending_handshakes.h"

#include <boost/asio/io_context.hpp>
#include <list>
#include <string>
#include <vector>

#include "common/log.h"
#include "tests/rendezvous/daemon/test_pending_handshakes.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// Connections with names, and those of them that were ended, with the reason.
struct Crowd {
  explicit Crowd(PendingHandshakes::Options options) {
    set_log_level(LogLevel::kError);
    all = std::make_shared<PendingHandshakes>(io, options);
  }
  ~Crowd() {
    all->stop();
    present.clear();
  }
  bool come(const std::string& name, const std::string& from) {
    UniqueFd fd;
    auto newcomer = all->admit(address(from), fd);
    if (!newcomer) return false;
    newcomer->ended_by([this, name](const std::string& reason) {
      ended.push_back(name);
      reasons.push_back(reason);
    });
    present.push_back(std::move(*newcomer));
    return true;
  }

  boost::asio::io_context io{1};
  std::shared_ptr<PendingHandshakes> all;
  std::list<Newcomer> present;
  std::vector<std::string> ended, reasons;
};

using Names = std::vector<std::string>;

PendingHandshakes::Options options(std::size_t max, std::size_t max_per_address = 2048) {
  PendingHandshakes::Options made;
  made.max = max;
  made.max_per_address = max_per_address;
  return made;
}

TEST_CASE(
    "PendingHandshakes: the oldest one of the address that has the most goes if there are too "
    "many") {
  Crowd crowd(options(5));
  crowd.come("honest", "10.0.0.1");
  for (int i = 0; i < 4; ++i) crowd.come("a" + std::to_string(i), "10.0.0.2");
  CHECK(crowd.ended.empty());
  crowd.come("b0", "10.0.0.3");
  CHECK(crowd.ended == Names{"a0"});
  crowd.come("b1", "10.0.0.3");
  CHECK(crowd.ended == Names{"a0", "a1"});
  crowd.come("b2", "10.0.0.3");  // the newest connection counts, too
  CHECK(crowd.ended == Names{"a0", "a1", "b0"});
  CHECK(crowd.all->size() == 5);
  CHECK(crowd.reasons.front() == "5 came after it");
}

TEST_CASE("PendingHandshakes: the oldest one of all goes if all addresses have as many") {
  Crowd crowd(options(3));
  for (int i = 0; i < 6; ++i) crowd.come(std::to_string(i), "10.0.0." + std::to_string(i));
  CHECK(crowd.ended == Names{"0", "1", "2"});
}

TEST_CASE("PendingHandshakes: an address has so many and no more, though there is room") {
  Crowd crowd(options(100, 2));
  for (int i = 0; i < 4; ++i) crowd.come(std::to_string(i), "10.0.0.1");
  CHECK(crowd.ended == Names{"0", "1"});
  CHECK(crowd.reasons.front() == "others of its address came after it");
  crowd.come("other", "10.0.0.2");
  CHECK(crowd.ended.size() == 2);
}

TEST_CASE("PendingHandshakes: 64 bits of an IPv6 address are one address, as is IPv4 within IPv6") {
  CHECK(PendingHandshakes::address_of(address("2001:db8::1")) == "2001:db8::/64");
  CHECK(PendingHandshakes::address_of(address("2001:db8::ffff:2")) == "2001:db8::/64");
  CHECK(PendingHandshakes::address_of(address("2001:db8:0:1::1")) == "2001:db8:0:1::/64");
  CHECK(PendingHandshakes::address_of(address("::ffff:10.0.0.1")) == "10.0.0.1");
  CHECK(PendingHandshakes::address_of(address("10.0.0.1")) == "10.0.0.1");
}

TEST_CASE("PendingHandshakes: addresses of 127.0.0.0/8 count as one, but for 127.0.0.1") {
  CHECK(PendingHandshakes::address_of(address("127.0.0.1")) == "127.0.0.1");
  CHECK(PendingHandshakes::address_of(address("127.0.0.2")) == "127.0.0.0/8");
  CHECK(PendingHandshakes::address_of(address("::ffff:127.1.2.3")) == "127.0.0.0/8");
}

TEST_CASE("PendingHandshakes: a place is given up with the connection, and counts no more") {
  Crowd crowd(options(2));
  crowd.come("gone", "10.0.0.1");
  crowd.present.clear();
  CHECK(crowd.all->size() == 0);
  crowd.come("a", "10.0.0.1");
  crowd.come("b", "10.0.0.1");
  CHECK(crowd.ended.empty());
}

TEST_CASE(
    "PendingHandshakes: a newcomer takes another's place if descriptors are scarce, or is "
    "refused") {
  PendingHandshakes::Options scarce = options(100);
  UniqueFd first = any_connection();
  scarce.max_descriptor = first.get() + 1;
  Crowd crowd(scarce);
  UniqueFd second = any_connection();
  CHECK_FALSE(crowd.all->admit(address("10.0.0.1"), second).has_value());
  auto a = crowd.all->admit(address("10.0.0.1"), first);
  REQUIRE(a.has_value());
  const int freed = first.get();
  a->ended_by([&](const std::string&) { first.reset(); });
  CHECK(crowd.all->admit(address("10.0.0.2"), second).has_value());
  CHECK(first.get() == -1);
  CHECK(second.get() == freed);  // the number is free at once, for the next one
}

TEST_CASE(
    "PendingHandshakes: a connection that takes too long is ended, one that is known in time "
    "stays") {
  PendingHandshakes::Options brief = options(100);
  brief.time_limit = 30ms;
  Crowd crowd(brief);
  const auto begin = Clock::now();
  crowd.come("known soon", "10.0.0.1");
  crowd.come("slow", "10.0.0.1");
  crowd.present.pop_front();
  crowd.io.run();
  CHECK(crowd.ended == Names{"slow"});
  CHECK(Clock::now() - begin >= 30ms);
  CHECK(crowd.reasons.front() == "it came 30 ms ago");
  crowd.come("later", "10.0.0.1");
  crowd.io.restart();
  crowd.io.run();
  CHECK(crowd.ended == Names{"slow", "later"});
}

TEST_CASE(
    "PendingHandshakes: a pinned connection makes way for nobody, and nobody comes if all are "
    "pinned") {
  Crowd crowd(options(2));
  crowd.come("pinned", "10.0.0.1");
  crowd.present.back().pin();
  crowd.come("a", "10.0.0.1");
  crowd.come("b", "10.0.0.1");
  CHECK(crowd.ended == Names{"a"});
  crowd.present.back().pin();
  CHECK_FALSE(crowd.come("c", "10.0.0.2"));
  crowd.all->end(crowd.present.front().number(), "its time is over");
  CHECK(crowd.ended == Names{"a", "pinned"});
  CHECK(crowd.come("d", "10.0.0.2"));
}

TEST_CASE("PendingHandshakes: an end may end others, and the place goes before it") {
  Crowd crowd(options(2));
  crowd.come("a", "10.0.0.1");
  crowd.come("b", "10.0.0.1");
  crowd.present.front().ended_by([&](const std::string&) { crowd.present.clear(); });
  const Newcomer last = admit(*crowd.all, "10.0.0.1");
  CHECK(crowd.ended.empty());  // b left by itself
  CHECK(crowd.all->size() == 1);
}

}  // namespace
}  // namespace ddprun::rendezvous::testing
