// SPDX-License-Identifier: Apache-2.0
// Makes a job's batch script for Slurm (docs/submit.md, "Slurm"), and parses what Slurm's programs
// print of a job. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ctl/submit/job_file.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Returns the batch script. `ddprun` is its path on the nodes, unless the job names another. Throws
// Error(kInvalidArgument) with a line for each thing that sbatch could not read.
std::string slurm_script(const JobFile& job, const std::string& ddprun);

// Times are in seconds since 1970: SLURM_TIME_FORMAT=%s.
struct SlurmJob {
  JobState state;
  std::string output;  // its output's path, if it was said
};

// Parses `scontrol --oneliner show job ID`. nullopt: the text isn't a job.
std::optional<SlurmJob> parse_scontrol(std::string_view text);

// Parses `sacct --noheader --parsable2 --allocations --format=kSacctFields`. nullopt: it has no
// job.
inline constexpr char kSacctFields[] = "JobID,JobName,State,ExitCode,Submit,Start,End,NodeList";
std::optional<JobState> parse_sacct(std::string_view text);

// Finds the job's id in the output of `sbatch --parsable`: "4711" or "4711;cluster". nullopt: there
// is none.
std::optional<std::string> parse_sbatch(std::string_view text);

}  // namespace ddprun::submit
