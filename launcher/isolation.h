// SPDX-License-Identifier: Apache-2.0
// What the limits of the command line mean for this node's workers. Looks at the machine's cgroups
// and disks, and changes nothing.
#pragma once

#include <vector>

#include "agent/isolation/isolation_plan.h"
#include "common/cpu_set.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

// `bound`: --numa-binding's plan, by local rank; empty: none.
agent::IsolationPlan plan_limits(const LaunchConfig& config, int num_workers,
                                 const std::vector<CpuSet>& bound);

}  // namespace ddprun::launcher
