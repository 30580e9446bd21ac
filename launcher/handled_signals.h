// SPDX-License-Identifier: Apache-2.0
// Signals that stop the job in order when ddprun gets them: --signals-to-handle. Pure.
#pragma once

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/preemption_options.h"

namespace ddprun::launcher {

struct HandledSignals {
  std::vector<int> numbers = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::string text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // as given, for the workers' environment
  bool operator==(const HandledSignals&) const = default;
};

// "SIGTERM,SIGUSR1". Returns the problem; empty: none.
std::string parse_handled_signals(std::string_view text, HandledSignals& handled);

// A signal can't both stop the job and warn of its node's end: what was asked for (`…_given`) wins
// against what counts by default. Returns the problem, if both were asked for; empty: none.
std::string settle_signals(bool handled_given, bool warnings_given, HandledSignals& handled,
                           PreemptionOptions& preemption);

}  // namespace ddprun::launcher
