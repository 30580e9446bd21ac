// SPDX-License-Identifier: Apache-2.0
// Makes a LaunchConfig from the command line, the environment and the configuration files. The
// options are in option_table.h. The only I/O is `load`'s.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/launch_config.h"
#include "launcher/options/option_values.h"
#include "launcher/scheduler_step.h"

namespace ddprun::launcher {

struct CommandLine {
  enum class Action { kRun, kPrintText };

  Action action = Action::kRun;
  std::string text;  // kPrintText: --help, --version or --show-config; print it and exit 0
  LaunchConfig config;
  OptionValues values;                // as given, with who gave each
  std::vector<ConfigFile> files;      // the files read, the strongest first
  std::optional<SchedulerStep> step;  // as it was passed in
  std::vector<std::string> problems;  // not empty: print each and exit 2
};

// Calls load_config_files() with the file that --config names, or "". It isn't called for --help.
// Empty: there are no files.
using LoadConfigFiles = std::function<std::vector<ConfigFile>(const std::string& named)>;

// `args` is without argv[0]. Every flag has two spellings, --a-b and --a_b, and may be abbreviated.
// Words after PROGRAM aren't parsed. A flag that isn't given takes DDPRUN_<FLAG> from the
// environment, else PET_<FLAG>, else a file's value. --nnodes last takes the number of the
// scheduler's `step`.
CommandLine parse_command_line(const std::vector<std::string>& args, const Environment& environment,
                               const LoadConfigFiles& load = {},
                               std::optional<SchedulerStep> step = std::nullopt);

}  // namespace ddprun::launcher
