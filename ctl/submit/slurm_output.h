// SPDX-License-Identifier: Apache-2.0
// What Slurm's programs say of a job. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Points in time are seconds since 1970: SLURM_TIME_FORMAT=%s.
struct SlurmJob {
  JobState state;
  std::string output;  // where it is, as far as it was said
};

// Of `scontrol --oneliner show job ID`. nullopt: it is none.
std::optional<SlurmJob> parse_scontrol(std::string_view text);

// Of `sacct --noheader --parsable2 --allocations --format=` and kSacctFields. nullopt: no job.
inline constexpr char kSacctFields[] = "JobID,JobName,State,ExitCode,Submit,Start,End,NodeList";
std::optional<JobState> parse_sacct(std::string_view text);

// The job's id in what `sbatch --parsable` prints: "4711" or "4711;cluster". nullopt: it is none.
std::optional<std::string> parse_sbatch(std::string_view text);

}  // namespace ddprun::submit
