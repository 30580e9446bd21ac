// SPDX-License-Identifier: Apache-2.0
// --rdzv-conf: torchrun's way to give the rendezvous' settings. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/launch_config.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {

// "is_host=1,join_timeout=7" into LaunchConfig::rdzv_conf, as OptionSetter has it. Which keys there
// are is check_rdzv_conf's affair.
std::string set_rdzv_conf(const std::string& value, LaunchConfig& config);

// Time limits that are given by key go where those that are given by option go; the option wins.
// Adds to `problems`.
void apply_rdzv_conf(const OptionValues& given, LaunchConfig& config,
                     std::vector<std::string>& problems);

// Keys and values that can't be.
void check_rdzv_conf(const LaunchConfig& config, std::vector<std::string>& problems);

}  // namespace ddprun::launcher
