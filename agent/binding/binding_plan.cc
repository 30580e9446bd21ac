// SPDX-License-Identifier: Apache-2.0
#include "agent/binding/binding_plan.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// Returns the first line of a file; empty where there is none.
std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> read_number(const fs::path& path) {
  const std::string line = read_line(path);
  std::string_view rest = line;
  return take_number<int>(rest);
}

// Returns the lowest CPU in the file's list, or `otherwise` if there is no list.
int lowest_of(const fs::path& path, int otherwise) {
  const auto cpus = parse_cpu_list(read_line(path));
  return cpus && !cpus->empty() ? cpus->cpus().front() : otherwise;
}

// Returns 12 for "node12".
std::optional<int> number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return parsed_number<int>(name.substr(prefix.size()));
}

std::map<int, int> nodes_of_cpus(const fs::path& system) {
  std::map<int, int> nodes;
  for (const std::string& name : names_in(system / "node")) {
    const auto node = number_behind(name, "node");
    if (!node) continue;
    const auto cpus = parse_cpu_list(read_line(system / "node" / name / "cpulist"));
    if (!cpus) continue;
    for (const int cpu : cpus->cpus()) nodes[cpu] = *node;
  }
  return nodes;
}

int last_level_cache(const fs::path& cpu, int number) {
  int level = -1, lowest = number;
  for (const std::string& name : names_in(cpu / "cache")) {
    const fs::path cache = cpu / "cache" / name;
    if (!number_behind(name, "index") || read_line(cache / "type") == "Instruction") continue;
    const int its_level = read_number(cache / "level").value_or(-1);
    if (its_level <= level) continue;
    level = its_level;
    lowest = lowest_of(cache / "shared_cpu_list", number);
  }
  return lowest;
}

std::vector<Cpu> read_cpus(const fs::path& system, const CpuSet& allowed) {
  const auto nodes = nodes_of_cpus(system);
  const auto online = parse_cpu_list(read_line(system / "cpu/online"));
  std::vector<Cpu> cpus;
  for (const int number : (online && !online->empty() ? *online : allowed).cpus()) {
    const fs::path folder = system / "cpu" / ("cpu" + std::to_string(number));
    const auto node = nodes.find(number);
    cpus.push_back({.number = number,
                    .node = node == nodes.end() ? 0 : node->second,
                    .socket = read_number(folder / "topology/physical_package_id").value_or(0),
                    .core = lowest_of(folder / "topology/thread_siblings_list", number),
                    .cache = last_level_cache(folder, number)});
  }
  return cpus;
}

// Reads the line "GPU UUID: \t GPU-…".
std::string read_uuid(const fs::path& information) {
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("GPU-");
    if (line.starts_with("GPU UUID") && at != std::string::npos) return line.substr(at);
  }
  return {};
}

std::vector<Gpu> read_gpus(const fs::path& root) {
  const fs::path folder = root / "proc/driver/nvidia/gpus";
  std::vector<Gpu> gpus;
  for (const std::string& bus_id : names_in(folder)) {
    const auto node = read_number(root / "sys/bus/pci/devices" / bus_id / "numa_node");
    gpus.push_back({.index = static_cast<int>(gpus.size()),
                    .bus_id = bus_id,
                    .uuid = read_uuid(folder / bus_id / "information"),
                    .node = std::max(0, node.value_or(0))});
  }
  return gpus;
}

constexpr std::pair<std::string_view, BindingMode> kModes[] = {
    {"none", BindingMode::kNone},
    {"node", BindingMode::kNode},
    {"socket", BindingMode::kSocket},
    {"exclusive", BindingMode::kExclusive},
    {"core-complex", BindingMode::kCoreComplex}};

// The position of one worker among those of its NUMA node, and their number.
struct Turn {
  int position = 0;
  int count = 0;
};

class BindingPlanner {
 public:
  BindingPlanner(BindingMode mode, const MachineLayout& machine) : mode_(mode) {
    for (const Cpu& cpu : machine.cpus) {
      all_of_node_[cpu.node].add(cpu.number);
      if (machine.allowed.contains(cpu.number)) cpus_.push_back(cpu);
    }
    for (const Cpu& cpu : cpus_) {
      if (nodes_.empty() || nodes_.back() != cpu.node) nodes_.push_back(cpu.node);
    }
    std::sort(nodes_.begin(), nodes_.end());
    nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
  }

  // Returns the NUMA nodes with a CPU that may be used.
  const std::vector<int>& nodes() const { return nodes_; }

  // Returns the worker's CPUs. Empty: the binding can't be done.
  CpuSet cpus_for(int node, Turn turn) const {
    switch (mode_) {
      case BindingMode::kSocket:
        return socket_of(node);
      case BindingMode::kExclusive:
        return share_of(groups_of(node, &Cpu::core), turn);
      case BindingMode::kCoreComplex:
        return complex_of(groups_of(node, &Cpu::cache), turn);
      default:
        return all_of(node);
    }
  }

  std::string problem_of(int node, Turn turn) const {
    if (all_of(node).empty()) {
      const auto all = all_of_node_.find(node);
      return concat(
          "NUMA node ", node,
          all == all_of_node_.end()
              ? std::string(" has no CPU")
              : " has CPUs " + to_text(all->second) +
                    ", none of which this process may use (its cgroup or taskset allows " +
                    to_text(allowed()) + ")");
    }
    return concat("NUMA node ", node, " has ", groups_of(node, &Cpu::core).size(),
                  " physical cores that this process may use for ", turn.count, " workers");
  }

 private:
  CpuSet allowed() const {
    CpuSet result;
    for (const Cpu& cpu : cpus_) result.add(cpu.number);
    return result;
  }

  CpuSet all_of(int node) const {
    CpuSet result;
    for (const Cpu& cpu : cpus_) {
      if (cpu.node == node) result.add(cpu.number);
    }
    return result;
  }

  CpuSet socket_of(int node) const {
    const auto first = std::find_if(cpus_.begin(), cpus_.end(),
                                    [node](const Cpu& cpu) { return cpu.node == node; });
    CpuSet result;
    for (const Cpu& cpu : cpus_) {
      if (first != cpus_.end() && cpu.socket == first->socket) result.add(cpu.number);
    }
    return result;
  }

  // Returns the node's CPUs, grouped by `key`, in the order of the keys.
  std::vector<CpuSet> groups_of(int node, int Cpu::*key) const {
    std::map<int, CpuSet> groups;
    for (const Cpu& cpu : cpus_) {
      if (cpu.node == node) groups[cpu.*key].add(cpu.number);
    }
    std::vector<CpuSet> result;
    for (const auto& [lowest, group] : groups) result.push_back(group);
    return result;
  }

  // Returns the worker's share. If the cores don't divide evenly, the first workers get one more.
  static CpuSet share_of(const std::vector<CpuSet>& cores, Turn turn) {
    const int num_cores = static_cast<int>(cores.size());
    const int each = num_cores / turn.count, rest = num_cores % turn.count;
    CpuSet result;
    if (each == 0) return result;
    const int begin = turn.position * each + std::min(turn.position, rest);
    const int end = begin + each + (turn.position < rest ? 1 : 0);
    for (int i = begin; i < end; ++i) result.add(cores[static_cast<std::size_t>(i)]);
    return result;
  }

  // Returns one complex for the worker, the largest ones first. With more workers than complexes it
  // begins again at the first.
  static CpuSet complex_of(std::vector<CpuSet> complexes, Turn turn) {
    if (complexes.empty()) return {};
    std::stable_sort(
        complexes.begin(), complexes.end(),
        [](const CpuSet& one, const CpuSet& other) { return one.size() > other.size(); });
    return complexes[static_cast<std::size_t>(turn.position) % complexes.size()];
  }

  const BindingMode mode_;
  std::vector<Cpu> cpus_;  // CPUs that may be used
  std::map<int, CpuSet> all_of_node_;
  std::vector<int> nodes_;
};

}  // namespace

MachineLayout read_machine_layout(const std::string& root, const CpuSet& allowed) {
  return {.cpus = read_cpus(fs::path(root) / "sys/devices/system", allowed),
          .allowed = allowed,
          .gpus = read_gpus(root)};
}

CpuSet allowed_cpus() {
  CpuSet cpus;
  cpu_set_t mask;
  static_assert(CPU_SETSIZE == CpuSet::kMostCpus);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CpuSet::kMostCpus; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.add(cpu);
  }
  return cpus;
}

std::vector<std::string_view> named_gpus(int installed, std::string_view cuda_visible_devices) {
  std::vector<std::string_view> entries;
  bool has_slice = false;
  while (!cuda_visible_devices.empty()) {
    const std::string_view entry = trimmed(take_until(cuda_visible_devices, ","));
    const auto index = number_within(entry, 0, INT_MAX);
    const bool is_slice = entry.starts_with("MIG-");
    if (index ? *index >= installed : !is_slice && !entry.starts_with("GPU-")) break;
    if (is_slice && std::exchange(has_slice, true)) continue;
    if (std::find(entries.begin(), entries.end(), entry) != entries.end()) return {};
    entries.push_back(entry);
  }
  if (std::ssize(entries) > installed) entries.resize(static_cast<std::size_t>(installed));
  return entries;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                              const std::optional<std::string>& cuda_visible_devices) {
  if (!cuda_visible_devices) return gpus;
  std::vector<Gpu> visible;
  for (const std::string_view entry :
       named_gpus(static_cast<int>(gpus.size()), *cuda_visible_devices)) {
    const auto index = parsed_number<int>(entry);
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return index ? gpu.index == *index : entry.starts_with("GPU-") && gpu.uuid.starts_with(entry);
    });
    if (found == gpus.end()) break;
    visible.push_back(*found);
  }
  return visible;
}

std::optional<BindingMode> parse_binding_mode(std::string_view text) {
  for (const auto& [name, mode] : kModes) {
    if (name == text) return mode;
  }
  return std::nullopt;
}

BindingPlan plan_binding(BindingMode mode, const MachineLayout& machine,
                         const std::vector<Gpu>& gpus, int num_workers) {
  BindingPlan plan;
  const BindingPlanner planner(mode, machine);
  const auto num_nodes = planner.nodes().size();
  std::map<int, int> count_of_node, next_of_node;
  for (int rank = 0; rank < num_workers; ++rank) {
    WorkerBinding worker;
    if (gpus.empty()) {
      const auto at =
          static_cast<std::size_t>(rank) * num_nodes / static_cast<std::size_t>(num_workers);
      worker.node = planner.nodes()[at];
    } else {
      worker.gpu = gpus[static_cast<std::size_t>(rank) % gpus.size()];
      worker.node = worker.gpu->node;
    }
    ++count_of_node[worker.node];
    plan.workers.push_back(std::move(worker));
  }
  for (std::size_t rank = 0; rank < plan.workers.size(); ++rank) {
    WorkerBinding& worker = plan.workers[rank];
    const Turn turn{next_of_node[worker.node]++, count_of_node[worker.node]};
    worker.cpus = planner.cpus_for(worker.node, turn);
    if (worker.cpus.empty() && plan.problem.empty()) {
      plan.problem = concat("local rank ", rank, ": ", planner.problem_of(worker.node, turn));
    }
  }
  return plan;
}

std::vector<std::string> to_lines(const BindingPlan& plan) {
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < plan.workers.size(); ++rank) {
    const WorkerBinding& worker = plan.workers[rank];
    const std::string gpu =
        worker.gpu ? concat(", GPU ", worker.gpu->index, " ", worker.gpu->bus_id) : "";
    lines.push_back(concat("local rank ", rank, ": CPUs ", to_text(worker.cpus), " (NUMA node ",
                           worker.node, gpu, ")"));
  }
  return lines;
}

}  // namespace ddprun::agent
