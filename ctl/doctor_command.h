// SPDX-License-Identifier: Apache-2.0
// `ddprunctl doctor`: is this node fit for jobs, and what would make it fitter? docs/doctor.md.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "ctl/endpoint_flags.h"

namespace ddprun::ctl {

class DoctorCommand {
 public:
  explicit DoctorCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // Looks, changes nothing, and prints. 0 ok, 1 warn, 2 fail, 3 unknown, as Nagios has it; so
  // what is wrong with the flags is 3, too, in one line. Throws as gather_facts().
  int run() const;

 private:
  int look() const;

  CLI::App* command_;
  EndpointFlags endpoint_;
  bool json_ = false, shows_all_ = false, lists_ = false;
  double timeout_seconds_ = 0.5;
  std::string only_, skip_, thresholds_file_, root_ = "/", log_dir_, state_dir_;
};

// What a wrong flag of `doctor` ends with: nothing is known of the node.
inline constexpr int kDoctorUnknown = 3;

}  // namespace ddprun::ctl
