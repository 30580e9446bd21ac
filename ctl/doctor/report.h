// SPDX-License-Identifier: Apache-2.0
// What `ddprunctl doctor` prints of its findings. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/wall_time.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/finding.h"

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

// What is at least as bad as `from`, the worst first, as one line; empty: nothing is.
std::string gate_line(const Report& report, Verdict from);

// docs/doctor.md has the keys.
std::string to_json(const Report& report);
boost::json::object report_object(const Report& report);
boost::json::object finding_object(const Finding& finding);

// Each of them and what it looks at, for --list.
std::string list_of_checks(const std::vector<const Check*>& checks);

}  // namespace ddprun::doctor
