// SPDX-License-Identifier: Apache-2.0
// A job for standing agents: who and where we are, then GangJob.
#pragma once

#include <string>

#include "common/environment.h"
#include "common/service_manager.h"
#include "launcher/cli.h"
#include "launcher/gangs/gang_request.h"

namespace ddprun::launcher {

// plan_gang() with what this process is.
GangRequest prepare_gang(const CommandLine& line, const Environment& environment);

// What --dry-run says: what would be submitted, without the values of variables.
std::string gang_to_text(const GangRequest& request);

// Returns ddprun's exit status. Throws Error: it can't be submitted, or a file can't be read.
int run_gang(GangRequest request, const LaunchConfig& config, ServiceManager manager);

}  // namespace ddprun::launcher
