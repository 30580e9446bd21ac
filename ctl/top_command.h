// SPDX-License-Identifier: Apache-2.0
// `ddprunctl top`: the jobs of a rendezvous as they run, in a terminal (docs/top.md).
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "ctl/endpoint_flags.h"

namespace ddprun::ctl {

class TopCommand {
 public:
  explicit TopCommand(CLI::App& app);

  bool chosen() const { return command_->parsed(); }
  // The exit code. Throws as EndpointFlags::fetch_page(), and Error(kInvalidArgument) where JOB
  // isn't there and one picture was asked for.
  int run() const;

 private:
  int print_once(bool has_unicode) const;

  CLI::App* command_;
  EndpointFlags endpoint_;
  std::string job_;
  bool once_ = false, plain_ = false;
};

}  // namespace ddprun::ctl
