// SPDX-License-Identifier: Apache-2.0
// A job's id and its state, derived from what was recorded of it, as text, as JSON and as an exit
// code. Pure, but for drawn_suffix().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ctl/submit/job_record.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Placeholder in a plan for the suffix that makes a job's name unique, if the scheduler makes none.
inline constexpr char kSuffixToCome[] = "xxxxx";

// Draws a suffix such as "k3v9x": 5 small letters and digits, none that is easily mistaken for
// another. Throws Error(kSystem).
std::string drawn_suffix();

// Returns the state of a job that runs no more. `forgotten` is its reason if there is no `exit`.
JobState state_of_record(const JobRecord& record, const std::optional<RecordedExit>& exit,
                         bool was_cancelled, const std::string& forgotten);

// Returns the exit code of `submit --wait` for a job that is over.
int exit_code_of(const JobState& state);

// Splits an id: "slurm:4711" → slurm and 4711. nullopt: it begins with no known place.
struct JobId {
  std::string place, id;
};
std::optional<JobId> parse_job_id(const std::string& text);
// Returns "slurm", "kubernetes", "ssh", "nodes".
const std::vector<std::string>& place_names();

// A table with a line for each job; all that is known of one job; the same as JSON.
std::string states_table(const std::vector<JobState>& states);
std::string state_text(const JobState& state);
std::string states_json(const std::vector<JobState>& states);
std::string state_json(const JobState& state);
std::string id_json(const std::string& id);

// These show the text that is submitted, and which ranks go where.
std::string plan_text(const Plan& plan);
std::string plan_json(const std::string& place, const Plan& plan);

}  // namespace ddprun::submit
