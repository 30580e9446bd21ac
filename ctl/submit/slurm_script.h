// SPDX-License-Identifier: Apache-2.0
// The batch script that a job is to Slurm (docs/submit.md, "Slurm"). Pure.
#pragma once

#include <string>

#include "ctl/submit/job_file.h"

namespace ddprun::submit {

// `ddprun`: where it is on the nodes, unless the job says so. Throws Error(kInvalidArgument), a
// line for each: what sbatch could not read.
std::string slurm_script(const JobFile& job, const std::string& ddprun);

// Where its output, and its exit code at its end, are. `id`: Slurm's number of the job.
std::string slurm_log_path(const JobFile& job, const std::string& id);
std::string slurm_exit_path(const JobFile& job, const std::string& id);

}  // namespace ddprun::submit
