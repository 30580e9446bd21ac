// SPDX-License-Identifier: Apache-2.0
// Runs a job on hosts that ssh reaches: makes the local command, and finds the job's processes.
// Pure, but for the processes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Returns the job's command. `ddprun` is the launcher on this machine. Throws
// Error(kInvalidArgument) if the job names no hosts.
std::vector<std::string> ssh_command(const JobFile& job, const std::string& ddprun);

// Returns the words of a /bin/sh that runs the command, and leaves the job's exit code in
// `exit_file`.
std::vector<std::string> ssh_supervisor(const std::vector<std::string>& command,
                                        const std::string& exit_file);

// Finds the running processes of a job over ssh on this machine. They are in the process group, and
// were started with DDPRUN_SUBMITTED_AS=id, even if their leader has ended. So processes of a later
// group with the same number aren't found. Returns a pidfd for each, which stays with its process
// even if the number is reused.
std::vector<UniqueFd> job_processes(pid_t group, const std::string& id);

// Sends SIGTERM to each of them that still runs. Throws Error(kSystem).
void end_processes(const std::vector<UniqueFd>& processes);

}  // namespace ddprun::submit
