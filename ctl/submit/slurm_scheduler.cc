// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/slurm_scheduler.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/shell_words.h"
#include "common/write_error.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/log_tail.h"
#include "ctl/submit/rank_map.h"
#include "ctl/submit/run_program.h"
#include "ctl/submit/slurm_script.h"

namespace ddprun::submit {
namespace {

const std::vector<std::string> kSbatch = {"sbatch", "--parsable"};

// A question; not sbatch, whose environment the job has.
ProgramEnd ask_slurm(std::vector<std::string> argv) {
  return run_program(
      {.argv = std::move(argv), .input = {}, .environment = {{"SLURM_TIME_FORMAT", "%s"}}});
}

[[noreturn]] void refuse_as_slurm(const std::string& program, const ProgramEnd& end) {
  std::string why = failure_text(end);
  for (const std::string& start : {program + ": ", std::string("error: ")}) {
    if (why.starts_with(start)) why.erase(0, start.size());
  }
  const bool is_away = why.find("nable to contact") != std::string::npos ||
                       why.find("onnection") != std::string::npos;
  throw Error(is_away ? ErrorCode::kConnectionLost : ErrorCode::kInvalidArgument,
              program + ": " + why);
}

void check_id(const std::string& id) {
  const bool is_number = !id.empty() && id.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number) {
    throw Error(ErrorCode::kInvalidArgument,
                "slurm:" + one_line(id) + " is no job: Slurm's ids are numbers");
  }
}

std::vector<std::string> notes_of(const JobFile& job) {
  std::vector<std::string> notes = rank_notes(job);
  for (const std::string& name : job.environment_without) {
    notes.push_back("sbatch doesn't get the variable " + one_line(name));
  }
  return notes;
}

// nullopt: Slurm doesn't know it (any more).
std::optional<SlurmJob> ask_scontrol(const std::string& id) {
  const ProgramEnd end = ask_slurm({"scontrol", "--oneliner", "show", "job", id});
  if (end.status == 0) return parse_scontrol(end.out);
  if (failure_text(end).find("Invalid job id") == std::string::npos)
    refuse_as_slurm("scontrol", end);
  return std::nullopt;
}

}  // namespace

SlurmScheduler::SlurmScheduler(const Environment& environment, std::string ddprun)
    : records_(environment), ddprun_(std::move(ddprun)) {}

Plan SlurmScheduler::plan(const JobFile& job) {
  return {.how = shell_line(kSbatch) + ", over standard input",
          .text = slurm_script(job, ddprun_),
          .ranks = rank_map(job, "node # of the step"),
          .notes = notes_of(job)};
}

std::string SlurmScheduler::submit(const JobFile& job) {
  const std::string script = slurm_script(job, ddprun_);
  std::error_code error;
  // Slurm makes no directories: the job would fail without a word.
  std::filesystem::create_directories(job.output_directory(), error);
  if (error) throw WriteError("can't make " + job.output_directory() + ": " + error.message());
  const ProgramEnd end = run_program(
      {.argv = kSbatch, .input = script, .environment = {}, .without = job.environment_without});
  const auto id = end.status == 0 ? parse_sbatch(end.out) : std::nullopt;
  if (!id) refuse_as_slurm("sbatch", end);
  const JobRecord record{.id = "slurm:" + *id,
                         .name = job.name,
                         .host = host_name(),
                         .submitted = std::chrono::system_clock::now(),
                         .log = slurm_log_path(job, *id),
                         .exit_file = slurm_exit_path(job, *id),
                         .nodes = {},
                         .command = job.command};
  try {
    records_.add(record);
  } catch (const Error& problem) {  // the job is there all the same
    log_warning(record.id,
                " has no record here, so ddprunctl jobs won't show it: ", problem.what());
  }
  return *id;
}

JobState SlurmScheduler::state_of_forgotten(const std::string& id) const {
  const ProgramEnd end = ask_slurm({"sacct", "--noheader", "--parsable2", "--allocations",
                                    "--jobs=" + id, std::string("--format=") + kSacctFields});
  if (auto state = end.status == 0 ? parse_sacct(end.out) : std::nullopt) return *state;
  const auto record = records_.find("slurm:" + id);
  if (!record) {
    throw Error(ErrorCode::kInvalidArgument, "slurm:" + id +
                                                 ": Slurm knows no such job (any more), and it was "
                                                 "not submitted from this home directory");
  }
  return state_of_record(*record, read_exit_file(record->exit_file),
                         records_.is_cancelled(record->id), "Slurm has forgotten it");
}

JobState SlurmScheduler::status(const std::string& id) {
  check_id(id);
  if (auto job = ask_scontrol(id)) {
    // What the job's own script says is the job's; Slurm has no codes above 255, and its own
    // signals.
    const auto record = records_.find("slurm:" + id);
    if (record && job->state.phase == Phase::kFailed) {
      if (const auto exit = read_exit_file(record->exit_file)) job->state.exit_code = exit->code;
    }
    return job->state;
  }
  return state_of_forgotten(id);
}

std::vector<JobState> SlurmScheduler::list() {
  std::vector<JobState> states;
  for (const JobRecord& record : records_.all_of(name())) {
    // With its exit code a job is over for good: Slurm need not be asked for each one of old.
    const auto exit = read_exit_file(record.exit_file);
    states.push_back(exit ? state_of_record(record, exit, records_.is_cancelled(record.id), "")
                          : status_or_unknown(record));
  }
  std::stable_partition(states.begin(), states.end(),
                        [](const JobState& state) { return !is_over(state.phase); });
  return states;
}

JobState SlurmScheduler::status_or_unknown(const JobRecord& record) {
  try {
    return status(record.id.substr(record.id.find(':') + 1));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return state_of_record(record, {}, records_.is_cancelled(record.id), error.what());
  }
}

void SlurmScheduler::cancel(const std::string& id) {
  check_id(id);
  const ProgramEnd end = ask_slurm({"scancel", id});
  // Of one that is over, too, scancel says that the id is invalid.
  if (end.status != 0 && failure_text(end).find("Invalid job id") == std::string::npos) {
    refuse_as_slurm("scancel", end);
  }
  if (end.status != 0) {
    status(id);  // throws where nobody knows it
  } else if (records_.find("slurm:" + id)) {
    records_.mark_cancelled("slurm:" + id);
  }
}

void SlurmScheduler::logs(const std::string& id, bool follow, const LogView& view) {
  check_id(id);
  std::string path;
  if (const auto record = records_.find("slurm:" + id)) {
    path = record->log;
  } else if (const auto job = ask_scontrol(id)) {
    path = job->output;
  }
  if (path.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "slurm:" + id + ": it is not known where its log is");
  }
  Deadline silence = Deadline::after(kMostSilence);
  show_log(path, follow, view, [&] {
    try {
      const Phase phase = status(id).phase;
      silence = Deadline::after(kMostSilence);
      return is_over(phase) || phase == Phase::kUnknown;
    } catch (const Error& error) {
      if (!may_pass(error) || silence.expired()) throw;
      return false;  // the controller is away: the log may grow all the same
    }
  });
}

}  // namespace ddprun::submit
