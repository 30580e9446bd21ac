// SPDX-License-Identifier: Apache-2.0
#include "ctl/page_command.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "ctl/standard_output.h"

namespace ddprun::ctl {

PageCommand::PageCommand(CLI::App& app, Page page)
    : page_(std::move(page)),
      command_(app.add_subcommand(page_.name, page_.description)),
      endpoint_(*command_) {
  command_->add_flag("--json", json_, "All that it says, as JSON");
}

ExitCode PageCommand::run() const {
  const std::string page = endpoint_.fetch_page(page_.target);
  const std::string table = page_.table(page);  // throws where it is another page
  const std::string& text = json_ ? page : table;
  return static_cast<ExitCode>(print_or_tell(text));
}

}  // namespace ddprun::ctl
