// SPDX-License-Identifier: Apache-2.0
// What plan_fleet() needs to know of this machine.
#pragma once

#include "launcher/cli.h"
#include "launcher/hosts/fleet_plan.h"

namespace ddprun::launcher {

// As the shell calls it where that is true: what lies behind links may be mounted elsewhere on
// other hosts. Empty: it is gone.
std::string working_directory(const Environment& environment);

// Reads the hosts file. What is wrong is in the plan's problems.
FleetPlan prepare_fleet(const CommandLine& line, const Environment& environment);

}  // namespace ddprun::launcher
