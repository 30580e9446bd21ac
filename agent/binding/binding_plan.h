// SPDX-License-Identifier: Apache-2.0
// The plan of which CPUs each worker of this node may use. The four modes are torchrun's
// --numa-binding (torch/numa/binding.py); unlike there a machine without GPUs is bound, too. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/cpu_set.h"

namespace ddprun::agent {

struct Cpu {
  int number = 0;
  int node = 0;    // NUMA node
  int socket = 0;  // physical package
  int core = 0;    // the lowest CPU of this physical core
  int cache = 0;   // the lowest CPU of those that share its last-level cache
};

struct Gpu {
  int index = 0;  // in the order of PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID numbers them
  std::string bus_id;  // "0000:3b:00.0"
  std::string uuid;    // "GPU-…"; empty: not known
  int node = 0;        // NUMA node; 0 where the firmware doesn't say it
};

// The CPUs and GPUs of this machine and which of them are near each other, from the kernel's sysfs.
struct MachineLayout {
  std::vector<Cpu> cpus;  // all of them that are online, in their order
  CpuSet allowed;         // CPUs that this process may use: cgroup, taskset
  std::vector<Gpu> gpus;  // NVIDIA's, as the loaded driver lists them
};

// Reads `root` + "/sys/devices/system", "/sys/bus/pci" and "/proc/driver/nvidia". A missing part (a
// kernel without NUMA, a container) counts as one node, one socket, one CPU a core, no GPU.
MachineLayout read_machine_layout(const std::string& root, const CpuSet& allowed);

// Returns the CPUs that this process may use. Empty: the machine has more CPUs than CpuSet holds.
CpuSet allowed_cpus();

// Returns the entries of CUDA_VISIBLE_DEVICES that name one of `installed` GPUs each, in their
// order. As in CUDA, the list ends before the first entry that names no GPU: it is empty, "-1" or
// an index beyond the last. Blanks around an entry don't count. If an entry is there twice, CUDA
// sees no GPU. A process sees only one slice (MIG), however many are named. The list outlives the
// result. Pure.
std::vector<std::string_view> named_gpus(int installed, std::string_view cuda_visible_devices);

// Returns the GPUs that CUDA sees, in its order. The variable (nullopt: unset) has numbers, or
// UUIDs that may be cut short.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                              const std::optional<std::string>& cuda_visible_devices);

enum class BindingMode {
  kNone,
  kNode,         // all CPUs of its NUMA node
  kSocket,       // all CPUs of its node's socket
  kExclusive,    // physical cores of its node that no other worker has
  kCoreComplex,  // CPUs of its node that share one last-level cache
};

// Parses "node", "socket", "exclusive", "core-complex", "none". nullopt: another word.
std::optional<BindingMode> parse_binding_mode(std::string_view text);

struct WorkerBinding {
  int node = 0;  // the NUMA node whose CPUs it uses
  // The GPU that gives the node. nullopt: workers are dealt out to the nodes in blocks.
  std::optional<Gpu> gpu;
  CpuSet cpus;
};

struct BindingPlan {
  std::vector<WorkerBinding> workers;  // by local rank
  std::string problem;                 // why the binding can't be done; empty: it can
};

// Worker i gets GPU i of `gpus`; with more workers than GPUs it begins again at the first.
// `machine` has at least one allowed CPU.
BindingPlan plan_binding(BindingMode mode, const MachineLayout& machine,
                         const std::vector<Gpu>& gpus, int num_workers);

// Returns lines such as "local rank 3: CPUs 8-15 (NUMA node 1, GPU 3 0000:af:00.0)".
std::vector<std::string> to_lines(const BindingPlan& plan);

}  // namespace ddprun::agent
