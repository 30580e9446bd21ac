// SPDX-License-Identifier: Apache-2.0
// `ddprunctl emulate`: flags in, a table or JSON out.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "ctl/emulate/emulation.h"

namespace ddprun::ctl {

class EmulateCommand {
 public:
  explicit EmulateCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // Runs it and prints. Throws as Emulation::run, and Error(kInvalidArgument) for a bad value.
  void run();

 private:
  CLI::App* command_;
  EmulationOptions options_;
  std::string endpoint_;
  double spawn_seconds_ = 0;
  double limit_seconds_ = 120;
  bool json_ = false;
};

}  // namespace ddprun::ctl
