// SPDX-License-Identifier: Apache-2.0
// A node's report to the rendezvous, from what the kernel counted now and at the reading before.
// Pure.
#pragma once

#include <optional>

#include "agent/gpu/gpu_status.h"
#include "agent/monitor/node_counters.h"
#include "common/clock.h"
#include "rendezvous/membership/node_report.h"

namespace ddprun::agent {

class NodeRates {
 public:
  // Rates are those since the last call; at the first one, and of a counter that went back (an
  // interface that was made anew), they are not known. `now` is later each time.
  membership::NodeReport report(const NodeCounters& counters, const GpuStatuses& gpus,
                                Clock::time_point now);

 private:
  struct Reading {
    NodeCounters counters;
    Clock::time_point at{};
  };
  std::optional<Reading> last_;
};

}  // namespace ddprun::agent
