// SPDX-License-Identifier: Apache-2.0
// Where this node stands in the cluster, for ranks in which neighbours are neighbours: --topology,
// else Slurm's, else the configuration's. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "launcher/config_file.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

// A dotted path from the widest switch to the narrowest, "pod1.rack7" (see
// rendezvous/membership/locality.h); empty where nobody says. Slurm's SLURM_TOPOLOGY_ADDR counts
// without the node's own name at its end.
std::string topology_label(const LaunchConfig& config, const Environment& environment,
                           const std::vector<ConfigFile>& files);

}  // namespace ddprun::launcher
