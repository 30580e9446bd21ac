// SPDX-License-Identifier: Apache-2.0
// This node's place in the cluster (--topology), and the CPUs and the GPU that each of its workers
// gets: --numa-binding and --virtual-local-rank (docs/binding.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/binding/binding_plan.h"
#include "common/cpu_set.h"
#include "common/environment.h"
#include "launcher/config_file.h"
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

// A dotted path from the widest switch to the narrowest, "pod1.rack7" (see
// rendezvous/membership/formation.h): --topology, else Slurm's, else the configuration's; empty
// where nobody says. Slurm's SLURM_TOPOLOGY_ADDR counts
// without the node's own name at its end.
std::string topology_label(const LaunchConfig& config, const Environment& environment,
                           const std::vector<ConfigFile>& files);

}  // namespace ddprun::launcher
