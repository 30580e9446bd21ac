// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/ssh_scheduler.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/shell_words.h"
#include "common/unique_fd.h"
#include "common/write_error.h"
#include "ctl/submit/drawn_suffix.h"
#include "ctl/submit/job_processes.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/log_tail.h"
#include "ctl/submit/run_program.h"
#include "ctl/submit/ssh_plan.h"

namespace ddprun::submit {
namespace {

UniqueFd open_or_throw(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, S_IRUSR | S_IWUSR));
  if (!fd) throw WriteError("can't open " + path + ": " + errno_text(errno));
  return fd;
}

// What the launcher says of the job before anything happens: its own rules are the rules.
Plan ask_launcher(const JobFile& job, std::vector<std::string> command) {
  command.insert(command.begin() + 1, {"--dry-run", "--json"});
  const ProgramEnd end =
      run_program({.argv = command, .input = {}, .environment = job.environment});
  if (end.status == 0) return parse_dry_run(end.out);
  const std::size_t last = end.err.find_last_not_of('\n');
  throw Error(ErrorCode::kInvalidArgument,
              last == std::string::npos ? failure_text(end) : end.err.substr(0, last + 1));
}

// Of one that runs no more, and left no exit code.
const char* why_without_code(const JobRecord& record) {
  std::error_code error;
  return std::filesystem::exists(unfinished_exit_file(record.exit_file), error)
             ? "its exit code could not be written: is the disk full?"
             : "its launcher was killed, or the machine was restarted";
}

// Of one that runs.
const char* why_running(bool has_launcher, bool was_cancelled) {
  if (has_launcher) return was_cancelled ? "asked to end" : "";
  return was_cancelled ? "asked to end; its launcher was killed: nobody will know its exit code"
                       : "its launcher was killed, its ddprun runs on: ddprunctl cancel ends it";
}

}  // namespace

SshScheduler::SshScheduler(const Environment& environment, std::string ddprun)
    : records_(environment), ddprun_(std::move(ddprun)) {}

Plan SshScheduler::plan(const JobFile& job) {
  const std::vector<std::string> command = ssh_command(job, ddprun_);
  Plan plan = ask_launcher(job, command);
  plan.how = "on this machine, detached, in " + job.work_directory();
  plan.text = shell_line(command);
  return plan;
}

std::string SshScheduler::submit(const JobFile& job) {
  const std::vector<std::string> command = ssh_command(job, ddprun_);
  const Plan plan = ask_launcher(job, command);
  const std::string id = job.name + "-" + drawn_suffix();
  JobRecord record{.id = "ssh:" + id,
                   .name = job.name,
                   .host = host_name(),
                   .submitted = std::chrono::system_clock::now(),
                   .log = {},
                   .exit_file = {},
                   .nodes = {},
                   .command = job.command};
  for (const RankRow& row : plan.ranks) record.nodes.push_back(row.node);
  const std::filesystem::path directory = records_.directory_of(record.id);
  record.log = job.log_dir.empty() ? (directory / "log").string() : job.log_dir + "/" + id + ".log";
  record.exit_file = (directory / "exit").string();
  records_.add(record);
  start(job, record);
  return id;
}

void SshScheduler::start(const JobFile& job, const JobRecord& record) {
  std::error_code error;
  try {
    if (!job.log_dir.empty()) std::filesystem::create_directories(job.log_dir, error);
    if (error) throw WriteError("can't make " + job.log_dir + ": " + error.message());
    const UniqueFd log = open_or_throw(record.log, O_WRONLY | O_CREAT | O_APPEND);
    Environment environment = job.environment;
    environment[env::kSubmittedAs] = record.id;
    launcher_ = start_program({.argv = ssh_supervisor(ssh_command(job, ddprun_), record.exit_file),
                               .descriptors = {ChildCommand::kNothing, log.get(), log.get()},
                               .directory = job.work_directory(),
                               .own_session = true},
                              environment)
                    .pid;
    records_.add_process(record.id, RecordedProcess::of(launcher_));
  } catch (...) {
    // What nobody could find again doesn't run.
    if (launcher_ > 0) {
      ::kill(-launcher_, SIGKILL);
      ::waitpid(launcher_, nullptr, 0);
      launcher_ = -1;
    }
    std::filesystem::remove_all(records_.directory_of(record.id), error);
    throw;
  }
}

JobRecord SshScheduler::record_of(const std::string& id) const {
  if (auto record = records_.find("ssh:" + id)) return *record;
  if (const std::string problem = records_.problem_of("ssh:" + id); !problem.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "ssh:" + one_line(id) + ": " + problem);
  }
  throw Error(ErrorCode::kInvalidArgument, "ssh:" + one_line(id) +
                                               " is no job that was submitted from this home "
                                               "directory (ddprunctl jobs --to ssh)");
}

// Where submit() waits for the job's end, nobody else does.
void SshScheduler::reap_launcher() {
  if (launcher_ > 0 && ::waitpid(launcher_, nullptr, WNOHANG) == launcher_) launcher_ = -1;
}

JobState SshScheduler::status(const std::string& id) {
  reap_launcher();
  const JobRecord record = record_of(id);
  const bool was_cancelled = records_.is_cancelled(record.id);
  const auto process = records_.process_of(record.id);
  const bool is_here = record.host == host_name();
  // Asked before the exit code is looked for, which comes before the process ends.
  const bool has_launcher = is_here && process && process->is_alive();
  const bool is_alive = has_launcher || (is_here && process && process->is_of_this_boot() &&
                                         !job_processes(process->pid, record.id).empty());
  const auto exit = read_exit_file(record.exit_file);
  JobState state = state_of_record(record, exit, was_cancelled, why_without_code(record));
  state.began = record.submitted;
  if (exit) return state;
  if (is_alive) {
    state.phase = Phase::kRunning;
    state.reason = why_running(has_launcher, was_cancelled);
  } else if (!is_here) {
    state.phase = Phase::kUnknown;
    state.reason = "its launcher runs, or ran, on " + record.host + ": ask there";
  }
  return state;
}

std::vector<JobState> SshScheduler::list() {
  std::vector<JobState> states;
  for (const JobRecord& record : records_.all_of(name())) {
    states.push_back(status(record.id.substr(record.id.find(':') + 1)));
  }
  std::stable_partition(states.begin(), states.end(),
                        [](const JobState& state) { return state.phase == Phase::kRunning; });
  return states;
}

void SshScheduler::cancel(const std::string& id) {
  const JobState state = status(id);
  if (is_over(state.phase)) return;
  if (state.phase != Phase::kRunning) {
    throw Error(ErrorCode::kInvalidArgument, state.id + ": " + state.reason);
  }
  records_.mark_cancelled(state.id);
  // ddprun and the shell that waits for it are one process group.
  const auto process = records_.process_of(state.id);
  if (!process) return;
  if (!process->is_alive()) {
    end_processes(job_processes(process->pid, state.id));
  } else if (::kill(-process->pid, SIGTERM) != 0 && errno != ESRCH) {
    throw_system_error("kill", errno);
  }
}

void SshScheduler::logs(const std::string& id, bool follow, const LogView& view) {
  const JobRecord record = record_of(id);
  show_log(record.log, follow, view, [&] { return status(id).phase != Phase::kRunning; });
}

}  // namespace ddprun::submit
