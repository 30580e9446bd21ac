// SPDX-License-Identifier: Apache-2.0
// `ddprunctl doctor`: is this node fit for jobs, and what would make it fitter? docs/doctor.md.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "ctl/doctor/checks.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/report.h"
#include "ctl/doctor/thresholds.h"
#include "ctl/endpoint_flags.h"

namespace ddprun::ctl {

class DoctorCommand {
 public:
  // `typed`: the command line behind "doctor", for other nodes.
  DoctorCommand(CLI::App& app, std::vector<std::string> typed);

  bool chosen() const { return command_->parsed(); }
  // Looks, changes nothing, and prints. 0 ok, 1 warn, 2 fail, 3 unknown, as Nagios has it; so
  // what is wrong with the flags is 3, too, in one line. Throws as gather_facts().
  int run() const;

 private:
  enum class Tier { kQuick, kStandard, kFull };

  Tier tier() const;
  int look() const;
  int look_at_this_node() const;
  int look_at_all_nodes() const;
  doctor::Facts gather(const std::vector<const doctor::Check*>& checks,
                       const doctor::Thresholds& thresholds) const;
  int print(const doctor::Report& report, const std::string& table, const std::string& json) const;
  int go_to_hosts() const;

  CLI::App* command_;
  const std::vector<std::string> typed_;
  EndpointFlags endpoint_;
  bool json_ = false, shows_all_ = false, lists_ = false;
  double timeout_seconds_ = 0.5, deadline_seconds_ = 0;
  std::string tier_ = "quick", hosts_, gate_, only_, skip_, thresholds_file_, root_ = "/", log_dir_,
              state_dir_;
};

// What a wrong flag of `doctor` ends with: nothing is known of the node.
inline constexpr int kDoctorUnknown = 3;

}  // namespace ddprun::ctl
