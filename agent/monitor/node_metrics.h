// SPDX-License-Identifier: Apache-2.0
// A node's readings as metrics: ddprun_node_… (docs/metrics.md). Pure.
#pragma once

#include "agent/monitor/node_reading.h"
#include "common/metrics_text.h"

namespace ddprun::agent {

// What is not known has no family; no more than membership::kMaxReportedGpus GPUs.
void write_node(metrics::TextWriter& out, const NodeReading& node);

}  // namespace ddprun::agent
