// SPDX-License-Identifier: Apache-2.0
// The printed reports of `ddprunctl doctor` on its findings. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/wall_time.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/finding.h"
#include "ctl/doctor/nodes/nodes_facts.h"

namespace ddprun::doctor {

struct Report {
  std::string host;  // of several nodes: how many
  WallTime time;
  double seconds = 0;  // that looking took
  std::vector<Finding> findings;
  std::string tier = "quick";
};

// The worst: fail, then warn, then unknown; kOk where there is none of these.
Verdict verdict_of(const std::vector<Finding>& findings);

// As Nagios has it: 0 ok, 1 warn, 2 fail, 3 unknown.
int exit_code_of(Verdict verdict);

// The worst first, each with why it matters and what mends it; all that is well in a line, unless
// `shows_all`.
std::string to_table(const Report& report, bool shows_all);

// The findings at least as bad as `from`, the worst first, as one line; empty: there are none.
std::string gate_line(const Report& report, Verdict from);

// docs/doctor.md has the keys.
std::string to_json(const Report& report);

// Each of them and what it looks at, for --list.
std::string list_of_checks(const std::vector<const Check*>& checks);

// The quick checks' findings of all nodes: the same one on several nodes is one. In the order of
// `checks`.
std::vector<Finding> group_findings(const NodesFacts& nodes,
                                    const std::vector<const Check*>& checks);

// The report's table, and, where something is wrong with a way, the pairs'.
std::string nodes_table(const Report& report, const NodesFacts& nodes, bool shows_all);

std::string nodes_json(const Report& report, const NodesFacts& nodes);

}  // namespace ddprun::doctor
