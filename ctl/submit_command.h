// SPDX-License-Identifier: Apache-2.0
// `ddprunctl submit`: a job file becomes a job. docs/submit.md.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "ctl/endpoint_flags.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::ctl {

class SubmitCommand {
 public:
  explicit SubmitCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // The exit code. Throws as Scheduler; what is wrong with the file, or the job, is printed.
  int run() const;

 private:
  int submit(const submit::JobFile& job) const;
  std::string place_of(const submit::JobFile& job) const;
  int follow(submit::Scheduler& scheduler, const std::string& id) const;

  CLI::App* command_;
  EndpointFlags endpoint_;
  std::string file_, place_;
  bool dry_run_ = false, wait_ = false, json_ = false;
};

}  // namespace ddprun::ctl
