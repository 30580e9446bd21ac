// SPDX-License-Identifier: Apache-2.0
// `ddprunctl stack` shows where the ranks of a job are (docs/stack.md).
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/json.h"
#include "common/text.h"
#include "ctl/commands.h"
#include "ctl/endpoint_flags.h"
#include "ctl/stack/folded_stacks.h"
#include "rendezvous/messages/json_fields.h"
#include "rendezvous/messages/stacks_target.h"
#include "rendezvous/pages/fetch.h"

namespace ddprun::ctl {
namespace {

constexpr int kSomeMissing = 1;

class StackCommand : public Command {
 public:
  explicit StackCommand(CLI::App& app) : Command(app, "stack"), endpoint_(*command_) {
    command_->add_option("JOB", job_, "Its run id (--rdzv-id)")->required();
    command_->add_option("RANK", ranks_, "Some of its ranks, 0-3,5; without: all");
    command_->add_flag("--native", native_,
                       "Show and compare native frames where there are Python's, too");
    command_->add_flag("--json", json_, "All that it says of each rank, as JSON");
  }

  // Throws as EndpointFlags::fetch_page() and fold_stacks().
  int run() const override {
    const std::string ranks = listed(ranks_, ",");
    if (!ranks_.empty() && !membership::parse_rank_list(ranks, kMostRanks)) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat("RANK ", one_line(ranks), ": wants numbers of ranks, as 0-3,5"));
    }
    const std::string page = endpoint_.fetch_page(membership::stacks_target({job_, ranks}));
    const FoldedStacks folded = endpoint_.read_page(
        page, [this](const std::string& text) { return fold_stacks(text, native_); });
    const int code = folded.num_missing == 0 ? 0 : kSomeMissing;
    if (code != 0) {
      say(concat("no stack of ", folded.num_missing, " of ", counted(folded.num_ranks, "rank")));
    }
    return print_or_tell(json_ ? shown_json(page) : folded.text, code);
  }

 private:
  static constexpr int kMostRanks = 1 << 20;

  EndpointFlags endpoint_;
  std::string job_;
  std::vector<std::string> ranks_;
  bool native_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_stack_command(CLI::App& app) {
  return std::make_unique<StackCommand>(app);
}

}  // namespace ddprun::ctl
