// SPDX-License-Identifier: Apache-2.0
// When the job's workers are asked to leave at a step boundary: by which signals, by which time
// limit, how long before. Also which signals stop the job in order. Pure.
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
  // Sent to ddprun: this node is about to be taken away.
  std::vector<int> signals = {SIGUSR1};
  std::optional<std::chrono::milliseconds> time_limit;  // from ddprun's start on
  bool time_limit_is_slurms = false;                    // --time-limit=auto: not known yet
  std::chrono::milliseconds notice{60'000};  // from the warning until the workers are stopped
  bool operator==(const PreemptionOptions&) const = default;
};

// The values of --preemption-signals ("USR1,TERM", numbers, "none"), --preemption-notice (a
// duration) and --time-limit (a duration, "auto", "" for none), set in `options`. Empty: all is
// well; else the problem.
std::string parse_preemption_signals(std::string_view text, PreemptionOptions& options);
std::string parse_preemption_notice(std::string_view text, PreemptionOptions& options);
std::string parse_time_limit(std::string_view text, PreemptionOptions& options);

// With --time-limit=auto: the time that Slurm gives the job, SLURM_JOB_END_TIME, from `now` on
// (seconds since 1970). Returns the problem; empty: none.
std::string resolve_time_limit(PreemptionOptions& options, const Environment& environment,
                               std::int64_t now);

// The signal that workers with a handler get for a warning by `number`: that one. For one that
// means a stop to programs (SIGTERM, SIGINT, SIGHUP, SIGQUIT) it is SIGUSR1: a warning is no stop
// yet.
int signal_for_workers(int number);

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
