// SPDX-License-Identifier: Apache-2.0
// When the job's workers are asked to leave at a step boundary: by which signals, by which time
// limit, how long before. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

struct PreemptionOptions {
  std::vector<int> signals;  // sent to ddprun: this node is about to be taken away
  std::optional<std::chrono::milliseconds> time_limit;  // from ddprun's start on
  bool time_limit_is_slurms = false;                    // --time-limit=auto: not known yet
  std::chrono::milliseconds notice{60'000};  // from the warning until the workers are stopped
};

// As typed.
struct PreemptionFlags {
  std::string signals = "SIGUSR1";  // names or numbers, separated by commas; "none"
  std::string time_limit;           // empty, "auto", or a duration
  std::string notice = "60";        // a duration
};

// Adds to `problems` what can't be, naming the flag.
PreemptionOptions parse_preemption(const PreemptionFlags& flags,
                                   std::vector<std::string>& problems);

// With --time-limit=auto: the time that Slurm gives the job, SLURM_JOB_END_TIME, from `now` on
// (seconds since 1970). Returns the problem; empty: none.
std::string resolve_time_limit(PreemptionOptions& options, const Environment& environment,
                               std::int64_t now);

// "90", "90s", "15m", "2h", "1d", and Slurm's "MM:SS", "HH:MM:SS", "D-HH:MM:SS". At most 1,000
// days.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

}  // namespace ddprun::launcher
