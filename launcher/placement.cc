// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement.h"

#include <optional>
#include <string_view>

#include "common/env_names.h"
#include "common/text.h"

namespace ddprun::launcher {
namespace {

// Returns the variable unchanged: an empty list means no GPU, an unset variable all of them.
std::optional<std::string> visible_list(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::nullopt : std::optional(found->second);
}

void bind(const LaunchConfig& config, const Environment& environment, int num_workers,
          const agent::MachineLayout& machine, Placement& placement) {
  if (machine.allowed.empty()) {
    placement.problems.push_back("--numa-binding: this machine has more than " +
                                 std::to_string(CpuSet::kMostCpus) +
                                 " CPUs, ddprun numbers no more");
    return;
  }
  const auto gpus =
      agent::visible_gpus(machine.gpus, visible_list(environment, env::kCudaVisibleDevices));
  const agent::BindingPlan plan = agent::plan_binding(config.binding, machine, gpus, num_workers);
  if (!plan.problem.empty()) {
    placement.problems.push_back("--numa-binding: " + plan.problem);
    return;
  }
  for (const agent::WorkerBinding& worker : plan.workers) {
    if (config.binding != agent::BindingMode::kNone) placement.cpus.push_back(worker.cpus);
  }
  if (!config.show_binding) return;
  if (config.binding == agent::BindingMode::kNone) {
    placement.notes.push_back("no --numa-binding: each worker may use CPUs " +
                              to_text(machine.allowed));
  } else {
    placement.notes = to_lines(plan);
  }
}

// As in torchrun, HIP's variable wins, and without variables all GPUs are used in their order.
void give_devices(const Environment& environment, int num_workers, Placement& placement) {
  const char* source = env::kHipVisibleDevices;
  auto visible = visible_list(environment, source);
  if (!visible || visible->empty()) {
    source = env::kCudaVisibleDevices;
    visible = visible_list(environment, source);
  }
  for (int rank = 0; !visible && rank < num_workers; ++rank) {
    placement.devices.push_back(std::to_string(rank));
  }
  std::string_view rest = visible ? std::string_view(*visible) : std::string_view();
  while (!rest.empty()) {
    std::string_view device = take_until(rest, ",");
    while (device.starts_with(' ')) device.remove_prefix(1);
    while (device.ends_with(' ')) device.remove_suffix(1);
    placement.devices.emplace_back(device);
  }
  if (static_cast<int>(placement.devices.size()) < num_workers) {
    placement.problems.push_back("--virtual-local-rank: " + std::to_string(num_workers) +
                                 " workers, but " + source + "=" + *visible + " names " +
                                 std::to_string(placement.devices.size()));
  }
}

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

bool needs_machine_layout(const LaunchConfig& config) {
  return config.binding != agent::BindingMode::kNone || config.show_binding;
}

Placement place_workers(const LaunchConfig& config, const Environment& environment, int num_workers,
                        const agent::MachineLayout& machine) {
  Placement placement;
  if (needs_machine_layout(config)) bind(config, environment, num_workers, machine, placement);
  if (config.virtual_local_rank) give_devices(environment, num_workers, placement);
  return placement;
}

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
