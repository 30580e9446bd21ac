// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

namespace ddprun::launcher {
namespace {

std::string nothing(const std::string& /*value*/, LaunchConfig& /*config*/) { return {}; }

}  // namespace

std::vector<Option> other_options() {
  using C = LaunchConfig;
  return {
      {"dry-run", "", "",
       "what would run where, with which environment, and no job (docs/dry-run.md)", kOtherGroup,
       switch_to(&C::dry_run), 0, true},
      {"json", "", "", "with --dry-run: the same as one JSON document", kOtherGroup,
       switch_to(&C::json), 0, true},
      {"config", "FILE", "", "options from there, too: docs/launcher.md", kOtherGroup, nothing, 0,
       true},
      {"show-config", "", "", "every option's value and where it comes from, and no job",
       kOtherGroup, nothing, 0, true},
      {"print-completion", "bash|zsh|fish|tcsh", "", "what that shell needs to complete flags",
       kOtherGroup, nothing, 0, true},
      {"print-man", "ddprun|ddprun.toml", "", "the manual page, for man -l -", kOtherGroup, nothing,
       0, true},
      {"help", "", "", "this text", kOtherGroup, nothing, 'h', true},
      {"version", "", "", "version, and what is built in", kOtherGroup, nothing, 0, true},
  };
}

}  // namespace ddprun::launcher
