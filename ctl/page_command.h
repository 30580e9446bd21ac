// SPDX-License-Identifier: Apache-2.0
// A command that shows one page of a rendezvous: as a table, or with --json as it is.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "common/exit_codes.h"
#include "ctl/endpoint_flags.h"

namespace ddprun::ctl {

class PageCommand {
 public:
  struct Page {
    std::string name, description;  // of the command
    std::string target;             // "/v1/jobs"
    std::string (*table)(const std::string& page);
  };

  PageCommand(CLI::App& app, Page page);

  bool chosen() const { return command_->parsed(); }
  CLI::App& command() const { return *command_; }
  const EndpointFlags& endpoint() const { return endpoint_; }
  bool json() const { return json_; }

  // Asks and prints. Throws as EndpointFlags::fetch_page() and the table, also with --json: what
  // is no such page is never printed.
  ExitCode run() const;

 private:
  std::string table_of(const std::string& page) const;

  const Page page_;
  CLI::App* command_;
  EndpointFlags endpoint_;
  bool json_ = false;
};

}  // namespace ddprun::ctl
