// SPDX-License-Identifier: Apache-2.0
// The command line and the environment of a gang's ddprun on this node. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/standing/standing_options.h"
#include "rendezvous/gangs/node_messages.h"

namespace ddprun::launcher {

// `program`: this installation's ddprun.
std::vector<std::string> gang_arguments(const gangs::StartPart& start,
                                        const StandingOptions& options, const std::string& program);

// The agent's own variables, without those of ddprun's options and of its service; those of the
// gang win.
std::vector<std::string> gang_environment(const gangs::StartPart& start, Environment own);

}  // namespace ddprun::launcher
