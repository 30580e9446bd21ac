// SPDX-License-Identifier: Apache-2.0
// --dry-run for people. Pure.
#pragma once

#include <string>

#include "launcher/dry_run/dry_run.h"

namespace ddprun::launcher {

std::string to_text(const DryRun& run);

// Limits and budgets of the job by the names of their options; seconds of what is a time. nullopt:
// none. Also for JSON.
struct NamedLimit {
  const char* option;
  std::optional<double> value;
  bool is_time = true;
};
std::vector<NamedLimit> limits_of(const LaunchConfig& config);

}  // namespace ddprun::launcher
