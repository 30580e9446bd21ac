// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_options.h"

#include "tests/support/catch.h"

using namespace ddprun::launcher;
using ddprun::test::Contains;
using Signals = std::vector<int>;

TEST_CASE("handled signals: names as torchrun takes them, each once") {
  HandledSignals handled;
  CHECK(parse_handled_signals("SIGTERM, SIGUSR1,TERM", handled).empty());
  CHECK(handled.numbers == Signals{SIGTERM, SIGUSR1});
  CHECK(handled.text == "SIGTERM, SIGUSR1,TERM");
  CHECK(parse_handled_signals(HandledSignals().text, handled).empty());
  CHECK(handled == HandledSignals());
}

TEST_CASE("handled signals: a signal that can't be handled is named, and changes nothing") {
  HandledSignals handled;
  for (const char* text : {"FOO", "", "SIGTERM,", "SIGKILL", "SIGTERM,SIGSTOP", "SIGSEGV"}) {
    CAPTURE(text);
    CHECK_THAT(parse_handled_signals(text, handled), Contains("is no signal that can be handled"));
  }
  CHECK(handled == HandledSignals());
}

TEST_CASE("handled signals: a signal asked for in one flag leaves the other flag's default") {
  const auto settled = [](const char* handle, const char* warn) {
    HandledSignals handled;
    PreemptionOptions preemption;
    if (handle) REQUIRE(parse_handled_signals(handle, handled).empty());
    if (warn) REQUIRE(parse_preemption_signals(warn, preemption).empty());
    const std::string problem = settle_signals(handle, warn, handled, preemption);
    return std::tuple(problem, handled.numbers, preemption.signals);
  };
  const Signals all = HandledSignals().numbers;
  CHECK(settled(nullptr, nullptr) == std::tuple("", all, Signals{SIGUSR1}));
  CHECK(settled("SIGUSR1", nullptr) == std::tuple("", Signals{SIGUSR1}, Signals{}));
  CHECK(settled(nullptr, "SIGTERM") ==
        std::tuple("", Signals{SIGINT, SIGHUP, SIGQUIT}, Signals{SIGTERM}));
  CHECK(settled("SIGINT", "SIGTERM") == std::tuple("", Signals{SIGINT}, Signals{SIGTERM}));
  CHECK_THAT(std::get<0>(settled("SIGTERM", "SIGTERM")), Contains("SIGTERM"));
}
