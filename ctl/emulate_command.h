// SPDX-License-Identifier: Apache-2.0
// `ddprunctl emulate`: flags in, a table or JSON out.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "common/exit_codes.h"
#include "ctl/emulate/emulation.h"

namespace ddprun::ctl {

class EmulateCommand {
 public:
  explicit EmulateCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // Runs it and prints. kInternal: an invariant was violated. Throws as Emulation::run, and
  // Error(kInvalidArgument) for a bad value.
  ExitCode run();

 private:
  void add_faults();
  void check();
  EmulationResult in_real_time();
  std::string repeat() const;

  CLI::App* command_;
  EmulationOptions options_;
  std::string endpoint_, plant_;
  double spawn_seconds_ = 0, keep_alive_seconds_ = 5;
  std::optional<double> duration_seconds_, limit_seconds_;
  bool json_ = false;
};

}  // namespace ddprun::ctl
