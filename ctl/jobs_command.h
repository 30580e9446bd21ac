// SPDX-License-Identifier: Apache-2.0
// `ddprunctl jobs`: what a rendezvous says of its jobs.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "common/exit_codes.h"
#include "rendezvous/security/tls.h"

namespace ddprun::ctl {

class JobsCommand {
 public:
  explicit JobsCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // Asks and prints. Throws as fetch() and Secret::from_file().
  ExitCode run() const;

 private:
  CLI::App* command_;
  std::string endpoint_ = "127.0.0.1:29400", token_file_;
  security::TlsFiles tls_;
  bool json_ = false;
};

// The page /v1/jobs as a table, a line for each job. Throws Error(kProtocol) where it isn't one.
std::string jobs_table(const std::string& page);

}  // namespace ddprun::ctl
