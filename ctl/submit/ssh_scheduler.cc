// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/ssh_scheduler.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/shell_words.h"
#include "common/unique_fd.h"
#include "ctl/submit/drawn_suffix.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/log_tail.h"
#include "ctl/submit/run_program.h"
#include "ctl/submit/spawn.h"
#include "ctl/submit/ssh_plan.h"

namespace ddprun::submit {
namespace {

UniqueFd open_or_throw(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, S_IRUSR | S_IWUSR));
  if (!fd) {
    throw Error(ErrorCode::kInvalidArgument, "can't open " + path + ": " + errno_text(errno));
  }
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

void SshScheduler::start(const JobFile& job, const JobRecord& record) const {
  std::error_code error;
  try {
    if (!job.log_dir.empty()) std::filesystem::create_directories(job.log_dir, error);
    if (error) {
      throw Error(ErrorCode::kInvalidArgument,
                  "can't make " + job.log_dir + ": " + error.message());
    }
    const UniqueFd nothing = open_or_throw("/dev/null", O_RDONLY);
    const UniqueFd log = open_or_throw(record.log, O_WRONLY | O_CREAT | O_APPEND);
    const pid_t pid = spawn({.argv = ssh_supervisor(ssh_command(job, ddprun_), record.exit_file),
                             .environment = job.environment,
                             .descriptors = {nothing.get(), log.get(), log.get()},
                             .directory = job.work_directory(),
                             .own_session = true});
    records_.add_process(record.id, RecordedProcess::of(pid));
  } catch (...) {
    std::filesystem::remove_all(records_.directory_of(record.id), error);
    throw;
  }
}

JobRecord SshScheduler::record_of(const std::string& id) const {
  if (auto record = records_.find("ssh:" + id)) return *record;
  throw Error(ErrorCode::kInvalidArgument, "ssh:" + one_line(id) +
                                               " is no job that was submitted from this home "
                                               "directory (ddprunctl jobs --to ssh)");
}

JobState SshScheduler::status(const std::string& id) {
  const JobRecord record = record_of(id);
  const bool was_cancelled = records_.is_cancelled(record.id);
  const auto process = records_.process_of(record.id);
  const bool is_here = record.host == host_name();
  // Asked before the exit code is looked for, which comes before the process ends.
  const bool is_alive = is_here && process && process->is_alive();
  const auto exit = read_exit_file(record.exit_file);
  JobState state = state_of_record(record, exit, was_cancelled,
                                   "its launcher was killed, or the machine was restarted");
  state.began = record.submitted;
  if (exit) return state;
  if (is_alive) {
    state.phase = Phase::kRunning;
    state.reason = was_cancelled ? "asked to end" : "";
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
  // The launcher and the shell that waits for it are one process group.
  const auto process = records_.process_of(state.id);
  if (process && ::kill(-process->pid, SIGTERM) != 0 && errno != ESRCH) {
    throw_system_error("kill", errno);
  }
}

void SshScheduler::logs(const std::string& id, bool follow, const LogView& view) {
  const JobRecord record = record_of(id);
  show_log(record.log, follow, view, [&] { return status(id).phase != Phase::kRunning; });
}

}  // namespace ddprun::submit
