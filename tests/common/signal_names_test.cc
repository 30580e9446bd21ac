// SPDX-License-Identifier: Apache-2.0
#include "common/signal_names.h"

#include <csignal>
#include <cstring>

#include "tests/support/catch.h"

TEST_CASE("signal names: they are those of the C library") {
  for (int number = 1; number < NSIG; ++number) {
    const char* name = ::sigabbrev_np(number);
    CHECK(ddprun::signal_name(number) ==
          (name ? std::string("SIG") + name : "signal " + std::to_string(number)));
  }
}

TEST_CASE("signal names: a signal has its name, and every usual spelling is read") {
  CHECK(ddprun::signal_name(SIGTERM) == "SIGTERM");
  CHECK(ddprun::signal_name(40) == "signal 40");
  for (const char* text : {"SIGUSR1", "USR1", "usr1", "10"}) {
    CHECK(ddprun::parse_signal(text) == SIGUSR1);
  }
  for (const char* text : {"", "SIGNOPE", "0", "65", "-1"}) {
    CAPTURE(text);
    CHECK_FALSE(ddprun::parse_signal(text).has_value());
  }
}
