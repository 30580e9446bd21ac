// SPDX-License-Identifier: Apache-2.0
// What the options about workers' output come to on this machine, before anything starts.
#pragma once

#include <string>

#include "agent/output/output_options.h"
#include "common/environment.h"

namespace ddprun::launcher {

struct OutputSetup {
  std::string problem;  // not empty: there can be no log files; one line, exit 2
  std::string note;     // not empty: tell the user once
};

enum class LogDirectory {
  kMade,         // with its parents, and a small file in it for a moment
  kOnlyChecked,  // --dry-run
  kNotLookedAt,  // likewise, of another host
};

// What stands for a name that is drawn when a job starts.
inline constexpr char kDrawnAtStart[] = "<random>";

// Fills in what depends on the environment and on the name that ddprun was called by, and makes
// (or only checks) the log directory where files are asked for, so that one that can't be written
// is known now. Where no directory was named (`log_dir_given` is empty, else how, for messages),
// redirected streams go to a new one below `temporary_directory`.
OutputSetup set_up_output(agent::OutputOptions& options, const Environment& environment,
                          const std::string& argv0, const std::string& temporary_directory,
                          const std::string& log_dir_given, LogDirectory directory);

}  // namespace ddprun::launcher
