// SPDX-License-Identifier: Apache-2.0
// One look at this node. Plain data.
#pragma once

#include "agent/gpu/gpu_status.h"
#include "agent/monitor/node_counters.h"

namespace ddprun::agent {

struct NodeReading {
  NodeCounters counters;
  GpuStatuses gpus;
};

}  // namespace ddprun::agent
