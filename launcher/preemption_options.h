// SPDX-License-Identifier: Apache-2.0
// Options on when the workers are asked to leave at a step boundary: after which signals, how long
// before which time limit. Also the signals that stop the job in order. Pure.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

struct PreemptionOptions {
  // Signals to ddprun that warn of this node's end.
  std::vector<int> signals = {SIGUSR1};
  std::optional<std::chrono::milliseconds> time_limit;  // counted from ddprun's start
  bool time_limit_is_slurms = false;                    // --time-limit=auto: not known yet
  std::chrono::milliseconds notice{60'000};             // between the warning and the workers' stop
  bool operator==(const PreemptionOptions&) const = default;
};

// Parse --preemption-signals ("USR1,TERM", numbers, "none"), --preemption-notice (a duration) and
// --time-limit (a duration, "auto", "" for none), and set the value in `options`. Return the
// problem; empty: none.
std::string parse_preemption_signals(std::string_view text, PreemptionOptions& options);
std::string parse_preemption_notice(std::string_view text, PreemptionOptions& options);
std::string parse_time_limit(std::string_view text, PreemptionOptions& options);

// With --time-limit=auto sets the time that Slurm still gives the job: SLURM_JOB_END_TIME less
// `now` (seconds since 1970). Returns the problem; empty: none.
std::string resolve_time_limit(PreemptionOptions& options, const Environment& environment,
                               std::int64_t now);

// Returns the signal for workers with a handler when `number` warns ddprun: the same one. But if
// `number` usually stops programs (SIGTERM, SIGINT, SIGHUP, SIGQUIT), it is SIGUSR1, since a
// warning is no stop yet.
int signal_for_workers(int number);

struct HandledSignals {
  std::vector<int> numbers = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::string text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // as given, for the workers' environment
  bool operator==(const HandledSignals&) const = default;
};

// Parses "SIGTERM,SIGUSR1". Returns the problem; empty: none.
std::string parse_handled_signals(std::string_view text, HandledSignals& handled);

// A signal can't both stop the job and warn of its node's end. A given option (`…_given`) wins
// against a default. Returns the problem if both were given; empty: none.
std::string settle_signals(bool handled_given, bool warnings_given, HandledSignals& handled,
                           PreemptionOptions& preemption);

}  // namespace ddprun::launcher
