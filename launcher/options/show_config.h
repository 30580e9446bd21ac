// SPDX-License-Identifier: Apache-2.0
// --show-config: every option's value and who gave it, as a configuration file has it. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {

// Options that nobody gave stand there as comments.
std::string show_config(const OptionValues& values, const Environment& environment,
                        const std::vector<ConfigFile>& files);

}  // namespace ddprun::launcher
