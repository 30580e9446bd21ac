// SPDX-License-Identifier: Apache-2.0
#include "launcher/topology_label.h"

#include <string_view>

#include "common/env_names.h"

namespace ddprun::launcher {
namespace {

// "s0.s4.node12" with the pattern "switch.switch.node" → "s0.s4".
std::string slurm_label(const Environment& environment) {
  constexpr std::string_view kNode = "node";
  const auto address = find_variable(environment, env::kSlurmTopologyAddr);
  const auto pattern = find_variable(environment, env::kSlurmTopologyAddrPattern);
  if (!address || !pattern || !pattern->ends_with(kNode)) return {};
  const std::size_t last_dot = address->rfind('.');
  return last_dot == std::string::npos ? std::string() : address->substr(0, last_dot);
}

}  // namespace

std::string topology_label(const LaunchConfig& config, const Environment& environment,
                           const std::vector<ConfigFile>& files) {
  if (!config.topology.empty()) return config.topology;
  if (std::string label = slurm_label(environment); !label.empty()) return label;
  for (const ConfigFile& file : files) {
    if (!file.topology.empty()) return file.topology;
  }
  return {};
}

}  // namespace ddprun::launcher
