// SPDX-License-Identifier: Apache-2.0
// The parts of the table of options, each in its own source: what --help shows under one heading or
// two. For option_table.cc.
#pragma once

#include <vector>

#include "launcher/options/option.h"

namespace ddprun::launcher {

std::vector<Option> size_options();
std::vector<Option> meeting_options();
std::vector<Option> hosts_options();
std::vector<Option> time_options();
std::vector<Option> progress_options();  // hangs, preemption
std::vector<Option> placement_options();
std::vector<Option> limits_options();
std::vector<Option> program_options();
std::vector<Option> torchrun_options();
std::vector<Option> output_options();

// What does something else than run a job, and --config.
inline constexpr char kOtherGroup[] = "Other";
std::vector<Option> other_options();

}  // namespace ddprun::launcher
