// SPDX-License-Identifier: Apache-2.0
// Which CPUs each worker of this node may use. The four modes are torchrun's --numa-binding
// (torch/numa/binding.py); other than there a machine without GPUs is bound, too. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/binding/machine_layout.h"
#include "common/cpu_set.h"

namespace ddprun::agent {

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
