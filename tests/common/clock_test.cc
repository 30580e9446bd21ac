// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"

#include "tests/support/catch.h"

using namespace ddprun;
using namespace std::chrono_literals;

TEST_CASE("Deadline: a time-out beyond the clock's range never expires, a negative one has") {
  CHECK(Deadline::after(std::chrono::milliseconds::max()).remaining() > std::chrono::hours(1000));
  CHECK(Deadline::after(std::chrono::hours::max()).remaining() > std::chrono::hours(1000));
  CHECK(Deadline::after(Clock::duration::max()).remaining() > std::chrono::hours(1000));
  CHECK(Deadline::after(std::chrono::milliseconds::min()).expired());
  CHECK(Deadline::after(0ms).expired());
  CHECK(Deadline::after(10min).remaining() <= 10min);
  CHECK(Deadline::after(10min).remaining() > 9min);
}

TEST_CASE("Deadline: the time-out for poll(2) is rounded up and bounded") {
  CHECK(Deadline::after(0ms).poll_timeout_ms() == 0);
  CHECK(Deadline::after(10s).poll_timeout_ms() > 9000);
  CHECK(Deadline::after(std::chrono::milliseconds::max()).poll_timeout_ms() == 2'000'000'000);
}
