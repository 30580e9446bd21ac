// SPDX-License-Identifier: Apache-2.0
// From the limits that were asked for and what this machine can do: what is written into which file
// of which worker's cgroup, what is enforced otherwise, and what isn't (docs/isolation.md).
#pragma once

#include <string>
#include <vector>

#include "agent/isolation/cgroup_place.h"
#include "agent/isolation/worker_limits.h"
#include "common/cpu_set.h"

namespace ddprun::agent {

// One value of a worker's cgroup.
struct CgroupSetting {
  std::string file;          // "memory.max"
  std::string value;         // as it is written
  std::string seen_in = {};  // the file that shows what holds; empty: the same
  bool may_lack = false;     // a kernel without it does without

  bool operator==(const CgroupSetting&) const = default;
};

struct UnenforcedLimit {
  std::string option;  // "worker-memory"
  std::string why;
};

struct IsolationPlan {
  WorkerLimits limits;
  CgroupPlace place;
  bool makes_cgroups = false;                       // a leaf for each worker
  std::vector<std::string> controllers;             // that the leaves need, beside what is there
  std::vector<std::vector<CgroupSetting>> workers;  // by local rank, of the leaves
  std::vector<CpuSet> affinity;  // by local rank, where a cpuset is kept by affinity; else empty
  std::vector<UnenforcedLimit> unenforced;
  std::vector<std::string> problems;  // whatever the machine can do: one line each

  // One line of all that is not enforced, and what is done instead; empty: all is.
  std::string shortfall() const;
};

struct IsolationRequest {
  WorkerLimits limits;
  int num_workers = 1;
  std::vector<CpuSet> bound;  // by local rank: --numa-binding's plan; empty: none
  CpuSet allowed;             // CPUs that ddprun may use
  std::size_t page_bytes = 4096;
};

// `place` is looked at only where a limit is asked for.
IsolationPlan plan_isolation(const IsolationRequest& request, const CgroupPlace& place,
                             const CgroupTree& tree);

// What the setting's file shows where it holds; "" or the difference, as in `is "max", not "4096"`.
std::string difference(const CgroupSetting& setting, const std::string& seen);

}  // namespace ddprun::agent
