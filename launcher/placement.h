// SPDX-License-Identifier: Apache-2.0
// Finds this node's place in the cluster (--topology), and each worker's CPUs and GPU:
// --numa-binding and --virtual-local-rank (docs/binding.md). Pure.
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
  std::vector<std::string> devices;   // by local rank, for CUDA_VISIBLE_DEVICES; empty: ddprun's
  std::vector<std::string> problems;  // why it can't be done; empty: it can
  std::vector<std::string> notes;     // for --show-binding
};

// Whether place_workers() uses facts about the machine.
bool needs_machine_layout(const LaunchConfig& config);

Placement place_workers(const LaunchConfig& config, const Environment& environment, int num_workers,
                        const agent::MachineLayout& machine);

// Returns a dotted path from the widest switch to the narrowest, "pod1.rack7" (see
// rendezvous/membership/formation.h). It is --topology's, else Slurm's, else the configuration's;
// empty: nobody gives one. From Slurm's SLURM_TOPOLOGY_ADDR the node's name at the end is removed.
std::string topology_label(const LaunchConfig& config, const Environment& environment,
                           const std::vector<ConfigFile>& files);

}  // namespace ddprun::launcher
