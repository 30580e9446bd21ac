// SPDX-License-Identifier: Apache-2.0
// The command line → LaunchConfig. cli.cc alone knows flags. Pure: no I/O.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

struct CommandLine {
  enum class Action { kRun, kPrintText };

  Action action = Action::kRun;
  std::string text;  // kPrintText: --help or --version; print it and exit 0
  LaunchConfig config;
  std::vector<std::string> problems;  // not empty: print each and exit 2
};

// `args` without argv[0]. Every flag has two spellings, --a-b and --a_b; what follows PROGRAM is
// never looked at. A flag that is not given takes PET_<FLAG> from the environment.
CommandLine parse_command_line(const std::vector<std::string>& args,
                               const Environment& environment);

}  // namespace ddprun::launcher
