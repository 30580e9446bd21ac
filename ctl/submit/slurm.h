// SPDX-License-Identifier: Apache-2.0
// The batch script that a job is to Slurm (docs/submit.md, "Slurm"), and what Slurm's programs say
// of one. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ctl/submit/job_file.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// `ddprun`: where it is on the nodes, unless the job says so. Throws Error(kInvalidArgument), a
// line for each: what sbatch could not read.
std::string slurm_script(const JobFile& job, const std::string& ddprun);

// Points in time are seconds since 1970: SLURM_TIME_FORMAT=%s.
struct SlurmJob {
  JobState state;
  std::string output;  // where it is, as far as it was said
};

// Parses `scontrol --oneliner show job ID`. nullopt: it is none.
std::optional<SlurmJob> parse_scontrol(std::string_view text);

// Parses `sacct --noheader --parsable2 --allocations --format=kSacctFields`. nullopt: no job.
inline constexpr char kSacctFields[] = "JobID,JobName,State,ExitCode,Submit,Start,End,NodeList";
std::optional<JobState> parse_sacct(std::string_view text);

// The job's id in what `sbatch --parsable` prints: "4711" or "4711;cluster". nullopt: it is none.
std::optional<std::string> parse_sbatch(std::string_view text);

}  // namespace ddprun::submit
