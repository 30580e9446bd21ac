// SPDX-License-Identifier: Apache-2.0
#include "agent/binding/machine_layout.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// The first line of a file; empty where there is none.
std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> read_number(const fs::path& path) {
  const std::string line = read_line(path);
  int number = 0;
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// Of the file's list; `otherwise` where there is none.
int lowest_of(const fs::path& path, int otherwise) {
  const auto cpus = parse_cpu_list(read_line(path));
  return cpus && !cpus->empty() ? cpus->cpus().front() : otherwise;
}

// Names of the directory's entries; none where it isn't there.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "node12" → 12.
std::optional<int> number_behind(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int number = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && stop == name.data() + name.size();
  return is_number ? std::optional(number) : std::nullopt;
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

// "GPU UUID: \t GPU-…"
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

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                              const std::optional<std::string>& cuda_visible_devices) {
  if (!cuda_visible_devices) return gpus;
  std::vector<Gpu> visible;
  std::string_view rest = *cuda_visible_devices;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const auto index = number_behind(entry, "");
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return index ? gpu.index == *index : entry.starts_with("GPU-") && gpu.uuid.starts_with(entry);
    });
    if (found == gpus.end()) break;
    visible.push_back(*found);
  }
  return visible;
}

}  // namespace ddprun::agent
