// SPDX-License-Identifier: Apache-2.0
// Which CPUs each worker of this node may use. The four modes are torchrun's --numa-binding
// (torch/numa/binding.py); other than there a machine without GPUs is bound, too. Pure.
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
  int node = 0;        // NUMA node; 0 where the firmware doesn't say
};

// Which CPUs and GPUs of this machine are near each other, as the kernel's sysfs tells it.
struct MachineLayout {
  std::vector<Cpu> cpus;  // all of them that are online, in their order
  CpuSet allowed;         // those that this process may use: cgroup, taskset
  std::vector<Gpu> gpus;  // NVIDIA's, as the loaded driver lists them
};

// `root` + "/sys/devices/system", "/sys/bus/pci" and "/proc/driver/nvidia" are read. A missing part
// (a kernel without NUMA, a container) counts as one node, one socket, one CPU a core, no GPU.
MachineLayout read_machine_layout(const std::string& root, const CpuSet& allowed);

// The CPUs that this process may use. Empty: the machine has more CPUs than CpuSet holds.
CpuSet allowed_cpus();

// The GPUs that CUDA sees, in its order: numbers, or UUIDs that may be cut short. As CUDA has it,
// the list ends before the first entry that is none.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                              const std::optional<std::string>& cuda_visible_devices);

enum class BindingMode {
  kNone,
  kNode,         // all CPUs of its NUMA node
  kSocket,       // all CPUs of its node's socket
  kExclusive,    // physical cores of its node that no other worker has
  kCoreComplex,  // CPUs of its node that share one last-level cache
};

// "node", "socket", "exclusive", "core-complex", "none". nullopt: another word.
std::optional<BindingMode> parse_binding_mode(std::string_view text);

struct WorkerBinding {
  int node = 0;            // that it is bound near to
  std::optional<Gpu> gpu;  // whose node that is; none: workers are dealt out to the nodes in blocks
  CpuSet cpus;
};

struct BindingPlan {
  std::vector<WorkerBinding> workers;  // by local rank
  std::string problem;                 // not empty: it can't be done, and why
};

// Worker i has GPU i of `gpus`, from the first one again where there are more workers. `machine`
// has at least one allowed CPU.
BindingPlan plan_binding(BindingMode mode, const MachineLayout& machine,
                         const std::vector<Gpu>& gpus, int num_workers);

// "local rank 3: CPUs 8-15 (NUMA node 1, GPU 3 0000:af:00.0)", one line each.
std::vector<std::string> to_lines(const BindingPlan& plan);

}  // namespace ddprun::agent
