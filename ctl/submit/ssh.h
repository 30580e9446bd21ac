// SPDX-License-Identifier: Apache-2.0
// A job on hosts that ssh reaches: the command that is run here, and what ddprun says of it. Pure.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// `ddprun` is the launcher on this machine. Throws Error(kInvalidArgument) where the job has no
// hosts.
std::vector<std::string> ssh_command(const JobFile& job, const std::string& ddprun);

// The command that runs it: /bin/sh with these words. It leaves the job's exit code in `exit_file`.
std::vector<std::string> ssh_supervisor(const std::vector<std::string>& command,
                                        const std::string& exit_file);

// The processes of a job over ssh on this machine: those of the process group that run and were
// started as that job's: with DDPRUN_SUBMITTED_AS=id. Its leader may be gone; another group of the
// same number has none. A pidfd for each, which stays with its process whatever gets its number.
std::vector<UniqueFd> job_processes(pid_t group, const std::string& id);

// SIGTERM for each of them that runs. Throws Error(kSystem).
void end_processes(const std::vector<UniqueFd>& processes);

}  // namespace ddprun::submit
