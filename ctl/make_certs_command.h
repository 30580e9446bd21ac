// SPDX-License-Identifier: Apache-2.0
// `ddprunctl make-certs`: certificates to try TLS with, or for a lab.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "common/exit_codes.h"

namespace ddprun::ctl {

class MakeCertsCommand {
 public:
  explicit MakeCertsCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // Writes the six files, none where one of them is there already, and says which. Throws
  // Error(kInvalidArgument) or as throw_system_error.
  ExitCode run() const;

 private:
  CLI::App* command_;
  std::string directory_;
  std::vector<std::string> hosts_;
  int days_ = 365;
};

}  // namespace ddprun::ctl
