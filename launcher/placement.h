// SPDX-License-Identifier: Apache-2.0
// Which CPUs and which GPU each worker of this node gets: --numa-binding and --virtual-local-rank
// (docs/binding.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/binding/machine_layout.h"
#include "common/cpu_set.h"
#include "common/environment.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

struct Placement {
  std::vector<CpuSet> cpus;           // by local rank; empty: as ddprun's own
  std::vector<std::string> devices;   // likewise, for CUDA_VISIBLE_DEVICES; empty: as ddprun's own
  std::vector<std::string> problems;  // not empty: it can't be done
  std::vector<std::string> notes;     // --show-binding
};

// Whether place_workers() looks at the machine.
bool needs_machine_layout(const LaunchConfig& config);

Placement place_workers(const LaunchConfig& config, const Environment& environment, int num_workers,
                        const agent::MachineLayout& machine);

}  // namespace ddprun::launcher
