// SPDX-License-Identifier: Apache-2.0
// What is printed of several nodes. Pure.
#pragma once

#include <string>
#include <vector>

#include "ctl/doctor/checks.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/report.h"

namespace ddprun::doctor {

// The quick checks' findings of all nodes: the same one on several nodes is one. In the order of
// `checks`.
std::vector<Finding> group_findings(const NodesFacts& nodes,
                                    const std::vector<const Check*>& checks);

// Bandwidth and round trip of each pair that was measured, as rows; empty: of none.
std::string pairs_table(const NodesFacts& nodes);

// The report's table, and, where something is wrong with a way, the pairs'.
std::string nodes_table(const Report& report, const NodesFacts& nodes, bool shows_all);

std::string nodes_json(const Report& report, const NodesFacts& nodes);

}  // namespace ddprun::doctor
