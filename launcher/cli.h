// SPDX-License-Identifier: Apache-2.0
// The command line, the environment and the configuration files → LaunchConfig. option_table.h has
// the options. No I/O but `load`'s.
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
  OptionValues values;                // as given, and by whom
  std::vector<ConfigFile> files;      // that were read, strongest one first
  std::optional<SchedulerStep> step;  // as given
  std::vector<std::string> problems;  // not empty: print each and exit 2
};

// load_config_files() with the file that --config names, or "". Not called for --help. Empty: there
// are no files.
using LoadConfigFiles = std::function<std::vector<ConfigFile>(const std::string& named)>;

// `args` without argv[0]. Every flag has two spellings, --a-b and --a_b, and may be abbreviated;
// what follows PROGRAM is never looked at. A flag that is not given takes DDPRUN_<FLAG> from the
// environment, else PET_<FLAG>, else what a file says; --nnodes then that of the scheduler's
// `step`.
CommandLine parse_command_line(const std::vector<std::string>& args, const Environment& environment,
                               const LoadConfigFiles& load = {},
                               std::optional<SchedulerStep> step = std::nullopt);

}  // namespace ddprun::launcher
