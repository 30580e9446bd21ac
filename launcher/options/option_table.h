// SPDX-License-Identifier: Apache-2.0
// The one place that knows ddprun's options. To add one: a field in launch_config.h, an entry in
// its group's source (option_groups.h), and docs/launcher.md.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/option.h"

namespace ddprun::launcher {

// In the order of --help.
const std::vector<Option>& option_table();

// nullptr: there is none. "-" and "_" count as the same letter.
const Option* find_option(std::string_view name);

// Whether torchrun 2.15 has an option of that name.
bool is_torchruns(const Option& option);

// "max-restarts" → "max_restarts", as keys of files and parts of variables have it.
std::string underscored(std::string name);

// A limit of the whole job: its option, and a key of --rdzv-conf (the name, underscored).
struct TimeLimit {
  const char* option;
  std::chrono::milliseconds LaunchConfig::*field;
  const char* fallback;  // Option's
  const char* help;
};
const std::vector<TimeLimit>& time_limits();

}  // namespace ddprun::launcher
