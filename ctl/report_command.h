// SPDX-License-Identifier: Apache-2.0
// `ddprunctl report`: a page, pictures and figures out of a finished job's files.
// docs/run-report.md.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace ddprun::ctl {

class ReportCommand {
 public:
  explicit ReportCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // The exit code. Throws Error: kInvalidArgument where there is no record, or of several jobs;
  // kUnsupported where pictures can't be made here; kSystem naming what fails while it is read.
  int run() const;

 private:
  int write_page(const std::string& job, const std::string& page) const;
  int draw_pictures(const std::string& page) const;

  CLI::App* command_;
  std::vector<std::string> paths_;
  std::string job_, output_, picture_folder_;
  bool json_ = false;
};

}  // namespace ddprun::ctl
