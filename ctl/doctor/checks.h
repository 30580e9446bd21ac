// SPDX-License-Identifier: Apache-2.0
// The checks: what each one judges, and why it matters. Pure. docs/doctor.md.
#pragma once

#include <string>
#include <vector>

#include "ctl/doctor/facts.h"
#include "ctl/doctor/finding.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/thresholds.h"

namespace ddprun::doctor {

// A check of a node, or, with `judge_nodes`, of all nodes of a job together.
struct Check {
  const char* name;
  const char* group;
  const char* reads;  // what is looked at, for --list
  const char* why;    // it matters
  Outcome (*judge)(const Facts& facts, const Thresholds& thresholds);
  Outcome (*judge_nodes)(const NodesFacts& nodes, const Thresholds& thresholds) = nullptr;

  bool is_of_all_ranks = false;  // of the full tier only

  bool is_of_nodes() const { return judge_nodes != nullptr; }
};

// All there are, in the order of docs/doctor.md.
const std::vector<Check>& check_table();

// The check of that name; nullptr: there is none.
const Check* find_check(const std::string& name);

Finding run_check(const Check& check, const Facts& facts, const Thresholds& thresholds);
Finding run_check(const Check& check, const NodesFacts& nodes, const Thresholds& thresholds);

// Names of checks and of groups, separated by ",", as --only and --skip have them. Throws
// Error(kInvalidArgument) for an unknown one, with a suggestion; `flag` is for the message.
std::vector<const Check*> parse_checks(const std::string& names, const std::string& flag);

// Rows for check_table().
std::vector<Check> host_checks();
std::vector<Check> network_checks();
std::vector<Check> environment_checks();
std::vector<Check> gpu_checks();
std::vector<Check> gpu_state_checks();
std::vector<Check> rdma_checks();
std::vector<Check> endpoint_checks();
std::vector<Check> nodes_checks();

}  // namespace ddprun::doctor
