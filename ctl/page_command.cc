// SPDX-License-Identifier: Apache-2.0
#include "ctl/page_command.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "common/error.h"
#include "ctl/standard_output.h"
#include "rendezvous/pages/fetch.h"

namespace ddprun::ctl {

PageCommand::PageCommand(CLI::App& app, Page page)
    : page_(std::move(page)),
      command_(app.add_subcommand(page_.name, page_.description)),
      endpoint_(*command_) {
  command_->add_flag("--json", json_, "All that it says, as JSON");
}

// Where it is another page the table says so.
std::string PageCommand::table_of(const std::string& page) const {
  try {
    return page_.table(page);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kProtocol) throw;
    throw pages::foreign_answer(endpoint_.text(), error.what());
  }
}

ExitCode PageCommand::run() const {
  const std::string page = endpoint_.fetch_page(page_.target);
  const std::string table = table_of(page);
  const std::string& text = json_ ? page : table;
  return static_cast<ExitCode>(print_or_tell(text));
}

}  // namespace ddprun::ctl
