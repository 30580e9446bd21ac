// SPDX-License-Identifier: Apache-2.0
// A job on hosts that ssh reaches: the command that is run here, and what ddprun says of it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// `ddprun` is the launcher on this machine. Throws Error(kInvalidArgument) where the job has no
// hosts.
std::vector<std::string> ssh_command(const JobFile& job, const std::string& ddprun);

// Ranks and notes out of `ddprun --dry-run --json`. Throws Error(kProtocol) where it is none.
Plan parse_dry_run(std::string_view text);

// What runs it: /bin/sh with these words; it leaves the job's exit code in `exit_file`.
std::vector<std::string> ssh_supervisor(const std::vector<std::string>& command,
                                        const std::string& exit_file);

}  // namespace ddprun::submit
