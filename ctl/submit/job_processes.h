// SPDX-License-Identifier: Apache-2.0
// The processes of a job over ssh on this machine: its process group, as far as it is still the
// job's.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::submit {

// Those of the process group that run and were started as that job's: with DDPRUN_SUBMITTED_AS=id.
// Its leader may be gone; another group of the same number has none. A pidfd for each, which stays
// with its process whatever gets its number.
std::vector<UniqueFd> job_processes(pid_t group, const std::string& id);

// SIGTERM for each of them that runs. Throws Error(kSystem).
void end_processes(const std::vector<UniqueFd>& processes);

}  // namespace ddprun::submit
