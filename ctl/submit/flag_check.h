// SPDX-License-Identifier: Apache-2.0
// What this machine's own ddprun says of the flags that a job means.
#pragma once

#include <string>

#include "ctl/submit/job_file.h"

namespace ddprun::submit {

// The ddprun beside the running program; "ddprun" where there is none.
std::string ddprun_beside();

// Throws Error(kInvalidArgument), a line for each thing that `ddprun` refuses. One that isn't here
// says nothing.
void check_flags(const JobFile& job, const std::string& ddprun);

}  // namespace ddprun::submit
