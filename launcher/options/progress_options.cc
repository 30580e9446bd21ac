// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

#include "launcher/hang_flags.h"

namespace ddprun::launcher {
namespace {

std::string set_hang_action(const std::string& value, LaunchConfig& config) {
  const auto action = parse_hang_action(value);
  if (!action) return "must be restart, report or off";
  config.hang_action = *action;
  return {};
}

// A setter of a part of the config.
template <typename Part>
OptionSetter in(Part LaunchConfig::*part, std::string (*set)(std::string_view, Part&)) {
  return [part, set](const std::string& value, LaunchConfig& config) {
    return set(value, config.*part);
  };
}

}  // namespace

std::vector<Option> progress_options() {
  constexpr char kHangs[] = "Ranks that make no progress";
  constexpr char kPreemption[] = "Preemption";
  using C = LaunchConfig;
  return {
      {"hang-timeout", "TIME|KEY=TIME,…", "",
       "no progress for so long is a hang: of steps, or for each of startup, first, step, "
       "checkpoint, teardown, foreign; 30s, 10m, 2h (default: learnt from the first steps)",
       kHangs, in(&C::hang_limits, parse_hang_timeout)},
      {"hang-action", "restart|report|off", "",
       "what is done about it (default: restart where workers report their steps, else report)",
       kHangs, set_hang_action},
      {"time-limit", "DURATION|auto", "",
       "of this job: 90m, 1-12:00:00; auto: Slurm's. Workers are asked to leave before",
       kPreemption, in(&C::preemption, parse_time_limit)},
      {"preemption-signals", "NAMES|none", "SIGUSR1",
       "ddprun gets one when this node is about to be taken away", kPreemption,
       in(&C::preemption, parse_preemption_signals)},
      {"preemption-notice", "DURATION", "60", "from such a warning until the workers are stopped",
       kPreemption, in(&C::preemption, parse_preemption_notice)},
  };
}

}  // namespace ddprun::launcher
