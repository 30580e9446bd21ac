// SPDX-License-Identifier: Apache-2.0
#include "common/signal_names.h"

#include <csignal>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("signal echo: the next one, of the same number and at once, is the first one again") {
  using std::chrono::milliseconds;
  const Clock::time_point now{};
  const auto second_is_echo = [&](int number, milliseconds later) {
    SignalEcho echo;
    CHECK_FALSE(echo.is_echo(SIGINT, now));
    return echo.is_echo(number, now + later);
  };
  CHECK(second_is_echo(SIGINT, milliseconds(0)));
  CHECK(second_is_echo(SIGINT, milliseconds(999)));
  CHECK_FALSE(second_is_echo(SIGINT, milliseconds(1000)));
  CHECK_FALSE(second_is_echo(SIGTERM, milliseconds(0)));
}

TEST_CASE("signal echo: a third signal is no echo") {
  SignalEcho echo;
  const Clock::time_point now{};
  CHECK_FALSE(echo.is_echo(SIGINT, now));
  CHECK(echo.is_echo(SIGINT, now));
  CHECK_FALSE(echo.is_echo(SIGINT, now));
}

TEST_CASE("signal echo: the sentence names the signal, and how it comes again") {
  CHECK(SignalEcho::text(SIGTERM) == "got SIGTERM again at once: it counts once");
  CHECK(SignalEcho::text(SIGINT, ", by srun") ==
        "got SIGINT again at once, by srun: it counts once");
}

}  // namespace
}  // namespace ddprun
