// SPDX-License-Identifier: Apache-2.0
// Prints the findings of `ddprunctl doctor`. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/wall_time.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/finding.h"
#include "ctl/doctor/nodes/nodes_facts.h"

namespace ddprun::doctor {

struct Report {
  std::string host;  // with several nodes: how many there are
  WallTime time;
  double seconds = 0;  // how long the checks took
  std::vector<Finding> findings;
  std::string tier = "quick";
};

// Returns the worst verdict of fail, warn and unknown; kOk if there is none of these.
Verdict verdict_of(const std::vector<Finding>& findings);

// Exit codes as in Nagios: 0 ok, 1 warn, 2 fail, 3 unknown.
int exit_code_of(Verdict verdict);

// Prints the worst findings first, each with its reason and its fix. Lists good and skipped ones
// only by name, unless `shows_all`.
std::string to_table(const Report& report, bool shows_all);

// Prints the fails and warnings at least as bad as `from` on one line, the worst first; empty:
// there are none.
std::string gate_line(const Report& report, Verdict from);

// docs/doctor.md has the keys.
std::string to_json(const Report& report);

// Prints each check and what it looks at, for --list.
std::string list_of_checks(const std::vector<const Check*>& checks);

// Merges the quick checks' findings of all nodes: equal findings of several nodes become one. They
// are in the order of `checks`.
std::vector<Finding> group_findings(const NodesFacts& nodes,
                                    const std::vector<const Check*>& checks);

// Prints the report's table. Adds the pairs' table if a way has a problem, or with `shows_all`.
std::string nodes_table(const Report& report, const NodesFacts& nodes, bool shows_all);

std::string nodes_json(const Report& report, const NodesFacts& nodes);

}  // namespace ddprun::doctor
