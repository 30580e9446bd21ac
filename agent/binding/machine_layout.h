// SPDX-License-Identifier: Apache-2.0
// Which CPUs and GPUs of this machine are near each other, as the kernel's sysfs tells it.
#pragma once

#include <optional>
#include <string>
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

struct MachineLayout {
  std::vector<Cpu> cpus;  // all of them that are online, in their order
  CpuSet allowed;         // those that this process may use: cgroup, taskset
  std::vector<Gpu> gpus;  // NVIDIA's, as the loaded driver lists them
};

// `root` + "/sys/devices/system", "/sys/bus/pci" and "/proc/driver/nvidia" are read; what isn't
// there (a kernel without NUMA, a container) is one node, one socket, one CPU a core, no GPU.
MachineLayout read_machine_layout(const std::string& root, const CpuSet& allowed);

// Those that this process may use. Empty: the machine has more CPUs than CpuSet holds.
CpuSet allowed_cpus();

// Those that CUDA sees, in its order: numbers, or UUIDs that may be cut short. As CUDA has it, the
// list ends before the first entry that is none.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                              const std::optional<std::string>& cuda_visible_devices);

}  // namespace ddprun::agent
