// SPDX-License-Identifier: Apache-2.0
#include "launcher/isolation.h"

#include <unistd.h>

#include "agent/binding/machine_layout.h"
#include "agent/isolation/cgroup_place.h"
#include "agent/isolation/cgroup_tree.h"

namespace ddprun::launcher {

agent::IsolationPlan plan_limits(const LaunchConfig& config, int num_workers,
                                 const std::vector<CpuSet>& bound) {
  const agent::RealCgroupTree tree;
  agent::IsolationRequest request;
  request.limits = config.worker_limits;
  request.num_workers = num_workers;
  request.bound = bound;
  request.allowed = agent::allowed_cpus();
  request.page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return plan_isolation(request, find_cgroup_place(tree, ::getpid(), ::geteuid()), tree);
}

}  // namespace ddprun::launcher
