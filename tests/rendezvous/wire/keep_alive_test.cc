// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/keep_alive.h"

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;

struct Pinging {
  Pinging() {
    keep_alive.opened(now);
    keep_alive.set(3s, 1s);
  }
  Clock::time_point now{1h};
  KeepAlive keep_alive;
};

TEST_CASE_METHOD(Pinging,
                 "KeepAlive: silence is counted from the sending of the last answered ping") {
  now += 1s;
  const std::string ping = keep_alive.ping(now);
  const auto sent = now;
  now += 1s;
  const auto answer = keep_alive.ponged(ping, now);
  REQUIRE(answer);
  CHECK(variants::get<agent_event::LinkAnswered>(*answer).sent_at == sent);
  CHECK_FALSE(keep_alive.is_silent(sent + 2999ms));
  CHECK(keep_alive.is_silent(sent + 3s));
  CHECK(keep_alive.next(now) == now + 1s);
  CHECK(keep_alive.next(sent + 2500ms) == sent + 3s);  // the time at which it may be silent
  CHECK_FALSE(keep_alive.ponged(ping, now));           // the same pong again
  keep_alive.opened(now + 10s);                        // on another connection
  CHECK_FALSE(keep_alive.is_silent(now + 12s));
  CHECK(keep_alive.is_silent(now + 13s));
}

TEST_CASE_METHOD(Pinging, "KeepAlive: quiet is half of silent, and no ping may be under way then") {
  CHECK(keep_alive.quiet_at() == now + 1500ms);
  CHECK(keep_alive.silent_at() == now + 3s);
  now += 1s;
  keep_alive.ponged(keep_alive.ping(now), now + 10ms);
  CHECK(keep_alive.quiet_at() == now + 1500ms);
  keep_alive.set(3s, 1500ms);  // with the largest possible interval the next ping leaves at 1500 ms
  CHECK(keep_alive.quiet_at() == now + 1875ms);
  CHECK(keep_alive.quiet_at() < keep_alive.silent_at());
}

TEST_CASE_METHOD(Pinging, "KeepAlive: the second pong has the rendezvous' clock") {
  now += 1s;
  const std::string pong = KeepAlive::clock_pong(keep_alive.ping(now), 77s);
  const auto sample = keep_alive.ponged(pong, now + 2ms);
  REQUIRE(sample);
  const auto& sampled = variants::get<agent_event::ClockSampled>(*sample);
  CHECK(sampled.sent == now);
  CHECK(sampled.answered == 77s);
  CHECK(sampled.received == now + 2ms);
  CHECK(KeepAlive::clock_pong(std::string(33, '1'), 1s).empty());
  int told = 0;
  for (std::uint64_t nth = 0; nth < 99; ++nth) {
    told += KeepAlive::tells_clock(nth) ? 1 : 0;
    CHECK((nth >= 9 || KeepAlive::tells_clock(nth)));
  }
  CHECK(told == 9 + 30);
}

TEST_CASE_METHOD(Pinging, "KeepAlive: agents ping at the same moments of the rendezvous' clock") {
  keep_alive.set(5s, 1600ms);
  const auto ahead = 40s + 7ms;  // ahead of this clock
  for (const auto late : {0ms, 3ms, 99ms, 130ms}) {
    CAPTURE(late.count());
    const auto at = now + late;
    keep_alive.opened(at);
    CHECK(keep_alive.next(at) == at + 1600ms);  // the offset is not known yet
    const auto shown = (at + 1ms + ahead).time_since_epoch();
    const auto clock = std::chrono::duration_cast<std::chrono::microseconds>(shown);
    keep_alive.ponged(KeepAlive::clock_pong(keep_alive.ping(at), clock), at + 2ms);
    const auto next = keep_alive.next(at + 2ms);
    CHECK((next + ahead).time_since_epoch() % 100ms == 0s);
    CHECK(next <= at + 2ms + 1600ms);
    CHECK(next > at + 2ms + 1500ms);
    // A timer that is a little late: still the same slot.
    CHECK(keep_alive.next(next + 1ms) == next + 1600ms);
  }
}

TEST_CASE_METHOD(Pinging, "KeepAlive: nonsense says nothing") {
  now += 1s;
  for (const char* payload : {"", "x", "-1", "1x", "1@", "@1", "1@x", "9999999999999999999999",
                              "2000000"}) {  // the last ping was sent in the future
    CHECK_FALSE(keep_alive.ponged(payload, now));
  }
}

}  // namespace
}  // namespace ddprun::membership
