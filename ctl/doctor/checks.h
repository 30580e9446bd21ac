// SPDX-License-Identifier: Apache-2.0
// The table of checks: what each one judges, and why this matters. Pure. docs/doctor.md.
#pragma once

#include <string>
#include <vector>

#include "ctl/doctor/facts.h"
#include "ctl/doctor/finding.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/thresholds.h"

namespace ddprun::doctor {

// A check of one node. With `judge_nodes` it is a check of all nodes of a job together.
struct Check {
  const char* name;
  const char* group;
  const char* reads;  // the files or settings that the check looks at, for --list
  const char* why;    // why the result matters
  Outcome (*judge)(const Facts& facts, const Thresholds& thresholds);
  Outcome (*judge_nodes)(const NodesFacts& nodes, const Thresholds& thresholds) = nullptr;

  bool is_of_all_ranks = false;  // needs all ranks: runs only in the full tier

  bool is_of_nodes() const { return judge_nodes != nullptr; }
};

// All checks, in the order of docs/doctor.md.
const std::vector<Check>& check_table();

// Returns the check of that name; nullptr: there is none.
const Check* find_check(const std::string& name);

Finding run_check(const Check& check, const Facts& facts, const Thresholds& thresholds);
Finding run_check(const Check& check, const NodesFacts& nodes, const Thresholds& thresholds);

// Parses names of checks and of groups, separated by ",", as in --only and --skip. Throws
// Error(kInvalidArgument) for an unknown name, with a suggestion. `flag` is named in the message.
std::vector<const Check*> parse_checks(const std::string& names, const std::string& flag);

// Parts of check_table().
std::vector<Check> host_checks();
std::vector<Check> network_checks();
std::vector<Check> environment_checks();
std::vector<Check> gpu_checks();
std::vector<Check> gpu_state_checks();
std::vector<Check> rdma_checks();
std::vector<Check> endpoint_checks();
std::vector<Check> nodes_checks();

}  // namespace ddprun::doctor
