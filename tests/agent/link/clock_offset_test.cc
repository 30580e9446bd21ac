// SPDX-License-Identifier: Apache-2.0
#include "agent/link/agent_machine.h"

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

const Clock::time_point kStart{1h};
constexpr microseconds kThere = 5h;  // the other clock's time at kStart

// Asks at kStart + `at`. The question takes `out`, the answer `back`.
void ask(ClockOffset& clock, microseconds at, microseconds out, microseconds back) {
  clock.sample(kStart + at, kThere + at + out, kStart + at + out + back);
}

TEST_CASE("ClockOffset: knows nothing before the first answer, and again after reset") {
  ClockOffset clock;
  CHECK_FALSE(clock.remote(kStart));
  ask(clock, 0us, 1ms, 1ms);
  CHECK(clock.remote(kStart));
  clock.reset();
  CHECK_FALSE(clock.remote(kStart));
}

TEST_CASE("ClockOffset: equal ways there and back give the exact time, however long they are") {
  ClockOffset clock;
  ask(clock, 0us, 300ms, 300ms);
  const auto moment = clock.remote(kStart + 300ms);
  REQUIRE(moment);
  CHECK(moment->at == kThere + 300ms);
  CHECK(moment->error == 300ms);
}

TEST_CASE("ClockOffset: the truth lies within the error, also where the ways differ") {
  for (const auto& [out, back] :
       {std::pair{10ms, 0ms}, std::pair{0ms, 10ms}, std::pair{7ms, 3ms}}) {
    ClockOffset clock;
    ask(clock, 0us, out, back);
    const auto moment = clock.remote(kStart + 2ms);
    REQUIRE(moment);
    CHECK(std::chrono::abs(moment->at - (kThere + 2ms)) <= moment->error);
    CHECK(moment->error <= 6ms);
  }
}

TEST_CASE("ClockOffset: the shortest round trip counts, until it is too old") {
  ClockOffset clock;
  ask(clock, 0us, 500us, 500us);
  ask(clock, 1s, 90ms, 10ms);
  CHECK(clock.remote(kStart + 1s)->error < 1ms);
  CHECK(clock.remote(kStart + 1s)->at - (kThere + 1s) == 0ms);
  ask(clock, 10s, 1ms, 1ms);  // an error of 500 µs grows to 2.5 ms in 10 s
  CHECK(clock.remote(kStart + 10s)->error < 1100us);
  CHECK(clock.remote(kStart + 1s)->error < 1ms);  // the old measurement holds for that time
}

TEST_CASE("ClockOffset: keeps the last samples only, and ignores an answer before its question") {
  ClockOffset clock;
  ask(clock, 0us, 1us, 1us);
  for (std::size_t i = 0; i < ClockOffset::kKept; ++i) ask(clock, 1ms, 50ms, 50ms);
  CHECK(clock.remote(kStart)->error >= 50ms);
  ClockOffset backwards;
  backwards.sample(kStart, kThere, kStart - 1ms);
  CHECK_FALSE(backwards.remote(kStart));
}

}  // namespace
}  // namespace ddprun::membership
