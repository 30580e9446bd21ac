// SPDX-License-Identifier: Apache-2.0
#include "ctl/job_commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "ctl/interrupts.h"
#include "ctl/log_output.h"
#include "ctl/place_questions.h"
#include "ctl/schedulers.h"
#include "ctl/standard_output.h"
#include "ctl/submit/job_states.h"

namespace ddprun::ctl {
namespace {

// What a command ends with that failed with both, in this order.
int joined_code(int before, int now) {
  return before == 0 || before == now ? now : static_cast<int>(ExitCode::kUsage);
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
    command.add_option("--context", context_, "Of Kubernetes: kubectl's context");
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
  const bool says_where = !place_.empty() || !context_.empty();
  return logs_->parsed() || cancel_->parsed() || (jobs_.chosen() && says_where) ||
         (status_.chosen() && (says_where || !job_.empty()));
}

int JobCommands::run() const {
  if (logs_->parsed()) return show_logs();
  if (cancel_->parsed()) return cancel();
  if (jobs_.chosen()) return show_jobs(jobs_);
  return job_.empty() ? show_jobs(status_) : show_status();
}

int JobCommands::show_jobs(const PageCommand& command) const {
  const auto states = make_scheduler(place_, command.endpoint(), context_)->list();
  return print_or_tell(command.json() ? submit::states_json(states) : submit::states_table(states));
}

int JobCommands::show_status() const {
  const NamedJob job = find_job(job_, place_, status_.endpoint(), context_);
  const submit::JobState state = job.scheduler->status(job.id);
  return print_or_tell(status_.json() ? submit::state_json(state) : submit::state_text(state));
}

int JobCommands::show_logs() const {
  const NamedJob job = find_job(job_, place_, logs_endpoint_, context_);
  Interrupts interrupts;
  const auto patience = follow_ ? submit::kMostSilence : std::chrono::minutes(0);
  PlaceQuestions questions(interrupts, *job.scheduler, patience);
  LogOutput output(STDOUT_FILENO, interrupts);
  try {
    job.scheduler->logs(job.id, follow_, output.view(questions));
  } catch (const Error&) {  // what was asked has its own end after ^C
    if (!interrupts.wait(std::chrono::milliseconds(0))) throw;
  }
  if (output.lost() != 0) {
    tell_lost_output(output.lost());
    return static_cast<int>(ExitCode::kOutputLost);
  }
  return interrupts.signal() ? exit_status_for_signal(*interrupts.signal()) : 0;
}

int JobCommands::cancel() const {
  int code = 0;
  for (const std::string& each : jobs_to_cancel_) {
    try {
      const NamedJob job = find_job(each, place_, cancel_endpoint_, context_);
      job.scheduler->cancel(job.id);
    } catch (const Error& error) {  // the others are asked all the same
      std::fprintf(stderr, "ddprunctl: %s\n", one_line(error.what()).c_str());
      code = joined_code(code, static_cast<int>(exit_code_for(error.code())));
    }
  }
  return code;
}

}  // namespace ddprun::ctl
