// SPDX-License-Identifier: Apache-2.0
// A job's id, and its state out of what was kept of it, for a person, and as an exit code. Pure,
// but for drawn_suffix().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ctl/submit/job_record.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Stands in a plan for the suffix that makes a job's name unique, if the scheduler makes none.
inline constexpr char kSuffixToCome[] = "xxxxx";

// "k3v9x": 5 small letters and digits, those that look like others left out. Throws Error(kSystem).
std::string drawn_suffix();

// The state of a job that runs no more. `forgotten` is the reason if it left no `exit`.
JobState state_of_record(const JobRecord& record, const std::optional<RecordedExit>& exit,
                         bool was_cancelled, const std::string& forgotten);

// The exit code of `submit --wait` for a job that is over.
int exit_code_of(const JobState& state);

// Names in ids: "slurm:4711" → slurm and 4711. nullopt: it begins with none of the places.
struct JobId {
  std::string place, id;
};
std::optional<JobId> parse_job_id(const std::string& text);
// "slurm", "kubernetes", "ssh", "nodes".
const std::vector<std::string>& place_names();

// A line for each job; all that is known of one; as JSON.
std::string states_table(const std::vector<JobState>& states);
std::string state_text(const JobState& state);
std::string states_json(const std::vector<JobState>& states);
std::string state_json(const JobState& state);
std::string id_json(const std::string& id);

// Show the submitted text, and which ranks go where.
std::string plan_text(const Plan& plan);
std::string plan_json(const std::string& place, const Plan& plan);

}  // namespace ddprun::submit
