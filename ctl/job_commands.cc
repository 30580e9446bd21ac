// SPDX-License-Identifier: Apache-2.0
#include "ctl/job_commands.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/exit_codes.h"
#include "ctl/interrupts.h"
#include "ctl/schedulers.h"
#include "ctl/submit/job_states.h"

namespace ddprun::ctl {
namespace {

int print_all(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return static_cast<int>(std::fflush(stdout) == 0 ? ExitCode::kOk : ExitCode::kOutputLost);
}

}  // namespace

JobCommands::JobCommands(CLI::App& app, const PageCommand& jobs, const PageCommand& status)
    : jobs_(jobs),
      status_(status),
      logs_(app.add_subcommand("logs", "Show a submitted job's output (docs/submit.md).")),
      cancel_(app.add_subcommand("cancel", "Ask for the end of submitted jobs (docs/submit.md).")),
      logs_endpoint_(*logs_),
      cancel_endpoint_(*cancel_) {
  const auto add_place = [&](CLI::App& command, const char* help) {
    command.add_option("--to", place_, help)->check(CLI::IsMember(submit::place_names()));
  };
  add_place(jobs.command(), "Show what was submitted there, instead (docs/submit.md)");
  add_place(status.command(), "Where JOB is, unless its id says so; without JOB as jobs --to");
  add_place(*logs_, "Where JOB is, unless its id says so");
  add_place(*cancel_, "Where the jobs are, unless their ids say so");
  status.command().add_option("JOB", job_, "Show this submitted job, instead: slurm:4711");
  logs_->add_option("JOB", job_, "Its id: slurm:4711")->required();
  logs_->add_flag("-f,--follow", follow_, "Until the job is over");
  cancel_->add_option("JOB", jobs_to_cancel_, "Their ids: slurm:4711")->required();
}

bool JobCommands::chosen() const {
  return logs_->parsed() || cancel_->parsed() || (jobs_.chosen() && !place_.empty()) ||
         (status_.chosen() && (!place_.empty() || !job_.empty()));
}

int JobCommands::run() const {
  if (logs_->parsed()) return show_logs();
  if (cancel_->parsed()) return cancel();
  if (jobs_.chosen()) return show_jobs(jobs_);
  return job_.empty() ? show_jobs(status_) : show_status();
}

int JobCommands::show_jobs(const PageCommand& command) const {
  const auto states = make_scheduler(place_, command.endpoint())->list();
  return print_all(command.json() ? submit::states_json(states) : submit::states_table(states));
}

int JobCommands::show_status() const {
  const NamedJob job = find_job(job_, place_, status_.endpoint());
  const submit::JobState state = job.scheduler->status(job.id);
  return print_all(status_.json() ? submit::state_json(state) : submit::state_text(state));
}

int JobCommands::show_logs() const {
  const NamedJob job = find_job(job_, place_, logs_endpoint_);
  Interrupts interrupts;
  bool is_lost = false;
  const submit::LogView view{
      .show =
          [&](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stdout);
            is_lost = std::fflush(stdout) != 0;
          },
      .pause =
          [&](std::chrono::milliseconds limit) { return !is_lost && !interrupts.wait(limit); }};
  job.scheduler->logs(job.id, follow_, view);
  if (is_lost) return static_cast<int>(ExitCode::kOutputLost);
  return interrupts.signal() ? exit_status_for_signal(*interrupts.signal()) : 0;
}

int JobCommands::cancel() const {
  for (const std::string& each : jobs_to_cancel_) {
    const NamedJob job = find_job(each, place_, cancel_endpoint_);
    job.scheduler->cancel(job.id);
  }
  return 0;
}

}  // namespace ddprun::ctl
