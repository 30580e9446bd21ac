// SPDX-License-Identifier: Apache-2.0
// What became of submitted jobs: `ddprunctl logs` and `cancel`, and `jobs` and `status` with --to
// or a job's id, without which these show a rendezvous (page_command.h). docs/submit.md.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "ctl/endpoint_flags.h"
#include "ctl/page_command.h"

namespace ddprun::ctl {

class JobCommands {
 public:
  // Adds to the commands `jobs` and `status`, which outlive it.
  JobCommands(CLI::App& app, const PageCommand& jobs, const PageCommand& status);

  bool chosen() const;
  // The exit code. Throws as Scheduler.
  int run() const;

 private:
  int show_jobs(const PageCommand& command) const;
  int show_status() const;
  int show_logs() const;
  int cancel() const;

  const PageCommand& jobs_;
  const PageCommand& status_;
  CLI::App* logs_;
  CLI::App* cancel_;
  EndpointFlags logs_endpoint_, cancel_endpoint_;
  std::string place_, job_, context_;
  std::vector<std::string> jobs_to_cancel_;
  bool follow_ = false;
};

}  // namespace ddprun::ctl
