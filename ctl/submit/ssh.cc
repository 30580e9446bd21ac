// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/ssh.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "common/ending.h"
#include "common/env_names.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/json.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/process_stat.h"
#include "common/regular_file.h"
#include "common/shell_words.h"
#include "common/text.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/job_record.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/run_program.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

// ddprun in the same process group handles the signals; the shell only waits for its end.
constexpr char kSupervisor[] =
    "trap : TERM INT HUP QUIT USR1\n"
    "exit_file=$1\n"
    "shift\n"
    "\"$@\"\n"
    "code=$?\n"
    "printf '%s\\n' \"$code\" >\"$exit_file.part\" && mv \"$exit_file.part\" \"$exit_file\"\n";

std::optional<int> number_at(const json::value& object, const char* key) {
  const json::value& value = object.at(key);
  return value.is_number() ? std::optional(value.to_number<int>()) : std::nullopt;
}

void take_lines(const json::value& list, std::vector<std::string>& to) {
  for (const json::value& line : list.as_array()) to.emplace_back(line.as_string());
}

std::optional<pid_t> pid_named(const std::string& name) {
  const auto pid = parsed_number<pid_t>(name);
  return pid && *pid > 0 ? pid : std::nullopt;
}

bool was_started_as(pid_t pid, const std::string& id) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  if (!file) return false;
  std::string variables("\0", 1);
  try {
    variables.append(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {  // the process has ended, or is another user's
    return false;
  }
  const std::string wanted = std::string("\0", 1) + env::kSubmittedAs + "=" + id;
  return variables.find(wanted + std::string("\0", 1)) != std::string::npos;
}

UniqueFd open_or_throw(const std::string& path, int flags) {
  UniqueFd fd = open_to_write(path, flags | O_CLOEXEC | O_NOCTTY, S_IRUSR | S_IWUSR);
  if (!fd) throw WriteError("can't open " + path + ": " + opening_trouble(path, errno));
  return fd;
}

// Reads ranks and notes from `ddprun --dry-run --json`. Throws Error(kProtocol) if it is other
// text.
Plan parse_dry_run(std::string_view text) {
  Plan plan;
  try {
    const json::value all = parsed_json(text);
    for (const json::value& node : all.at("nodes").as_array()) {
      RankRow row{.node = std::string(node.at("host").as_string()),
                  .node_rank = static_cast<int>(plan.ranks.size()),
                  .first_global_rank = number_at(node, "first_global_rank"),
                  .num_workers = number_at(node, "num_workers")};
      if (node.at("is_spare").as_bool()) row.num_workers = 0;
      plan.ranks.push_back(std::move(row));
    }
    take_lines(all.at("assumed"), plan.notes);
    take_lines(all.at("notes"), plan.notes);
  } catch (const std::exception& error) {
    throw Error(
        ErrorCode::kProtocol,
        concat("what ddprun --dry-run says is not what was expected: ", json_trouble(error)));
  }
  return plan;
}

// Asks the launcher for its plan before anything is started, since its rules count.
Plan ask_launcher(const JobFile& job, std::vector<std::string> command) {
  command.insert(command.begin() + 1, {"--dry-run", "--json"});
  const ProgramEnd end =
      run_program({.argv = command, .input = {}, .environment = job.environment});
  if (end.status == 0) return parse_dry_run(end.out);
  const std::size_t last = end.err.find_last_not_of('\n');
  throw Error(ErrorCode::kInvalidArgument,
              last == std::string::npos ? failure_text(end) : end.err.substr(0, last + 1));
}

// The reason of a job that runs no more and left no exit code.
const char* why_without_code(const JobRecord& record) {
  std::error_code error;
  return std::filesystem::exists(unfinished_exit_file(record.exit_file), error)
             ? "its exit code could not be written: is the disk full?"
             : "its launcher was killed, or the machine was restarted";
}

// The reason of a job that runs.
const char* why_running(bool has_launcher, bool was_cancelled) {
  if (has_launcher) return was_cancelled ? "asked to end" : "";
  return was_cancelled ? "asked to end; its launcher was killed: nobody will know its exit code"
                       : "its launcher was killed, its ddprun runs on: ddprunctl cancel ends it";
}

class SshScheduler : public Scheduler {
 public:
  SshScheduler(const Environment& environment, std::string ddprun)
      : records_(environment), ddprun_(std::move(ddprun)) {}

  const char* name() const override { return "ssh"; }
  Plan plan(const JobFile& job) override {
    const std::vector<std::string> command = ssh_command(job, ddprun_);
    Plan plan = ask_launcher(job, command);
    plan.how = "on this machine, detached, in " + job.work_directory();
    plan.text = shell_line(command);
    return plan;
  }

  std::string submit(const JobFile& job) override {
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
    record.log =
        job.log_dir.empty() ? (directory / "log").string() : job.log_dir + "/" + id + ".log";
    record.exit_file = (directory / "exit").string();
    records_.add(record);
    start(job, record);
    return id;
  }

  std::vector<JobState> list() override {
    std::vector<JobState> states;
    for (const JobRecord& record : records_.all_of(name())) {
      states.push_back(status(record.id.substr(record.id.find(':') + 1)));
    }
    std::stable_partition(states.begin(), states.end(),
                          [](const JobState& state) { return state.phase == Phase::kRunning; });
    return states;
  }

  JobState status(const std::string& id) override {
    reap_launcher();
    const JobRecord record = record_of(id);
    const bool was_cancelled = records_.is_cancelled(record.id);
    const auto process = records_.process_of(record.id);
    const bool is_here = record.host == host_name();
    // Must be asked before the exit code is read: the code is written before the process ends.
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

  void cancel(const std::string& id) override {
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

  void logs(const std::string& id, bool follow, const LogView& view) override {
    const JobRecord record = record_of(id);
    show_log(record.log, follow, view, [&] { return status(id).phase != Phase::kRunning; });
  }

 private:
  JobRecord record_of(const std::string& id) const {
    if (auto record = records_.find("ssh:" + id)) return *record;
    if (const std::string problem = records_.problem_of("ssh:" + id); !problem.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "ssh:" + one_line(id) + ": " + problem);
    }
    throw Error(ErrorCode::kInvalidArgument, "ssh:" + one_line(id) +
                                                 " is no job that was submitted from this home "
                                                 "directory (ddprunctl jobs --to ssh)");
  }

  void start(const JobFile& job, const JobRecord& record) {
    std::error_code error;
    try {
      if (!job.log_dir.empty()) std::filesystem::create_directories(job.log_dir, error);
      if (error) throw WriteError("can't make " + job.log_dir + ": " + error.message());
      const UniqueFd log = open_or_throw(record.log, O_WRONLY | O_CREAT | O_APPEND);
      Environment environment = job.environment;
      environment[env::kSubmittedAs] = record.id;
      launcher_ =
          start_program({.argv = ssh_supervisor(ssh_command(job, ddprun_), record.exit_file),
                         .descriptors = {ChildCommand::kNothing, log.get(), log.get()},
                         .directory = job.work_directory(),
                         .own_session = true},
                        environment)
              .pid;
      records_.add_process(record.id, RecordedProcess::of(launcher_));
    } catch (...) {
      // A launcher without a record must not run, since nobody could find it.
      if (launcher_ > 0) {
        ::kill(-launcher_, SIGKILL);
        ::waitpid(launcher_, nullptr, 0);
        launcher_ = -1;
      }
      std::filesystem::remove_all(records_.directory_of(record.id), error);
      throw;
    }
  }

  // The submitting process is the launcher's parent, so it must reap it.
  void reap_launcher() {
    if (launcher_ > 0 && ::waitpid(launcher_, nullptr, WNOHANG) == launcher_) launcher_ = -1;
  }

  const JobRecords records_;
  const std::string ddprun_;
  pid_t launcher_ = -1;  // started by submit(), our child until it is reaped; -1: none
};

}  // namespace

std::vector<std::string> ssh_command(const JobFile& job, const std::string& ddprun) {
  const SshKeys& keys = job.ssh;
  if (keys.hosts.empty() && keys.hostfile.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        job.path + ": it names no hosts: hosts = [\"n[01-04]:8\"] in [to.ssh], or hostfile");
  }
  CommandTraits traits{.ddprun = ddprun, .default_nodes = "", .says_nodes = true, .flags = {}};
  const auto add = [&](const std::string& flag, const std::string& value) {
    if (!value.empty()) traits.flags.push_back("--" + flag + "=" + value);
  };
  add("hosts", keys.hosts);
  add("hostfile", keys.hostfile);
  add("include-hosts", keys.include);
  add("exclude-hosts", keys.exclude);
  add("ssh", keys.ssh);
  add("remote-ddprun", job.ddprun);
  for (const std::string& name : job.environment_without) add("env", "-" + name);
  // The launcher has their values; a command line must not show them.
  for (const auto& variable : job.environment) add("env", variable.first);
  if (job.limits.time) add("time-limit", std::to_string(job.limits.time->count()));
  JobFile here = job;
  here.ddprun.clear();
  return ddprun_command(here, traits);
}

std::vector<std::string> ssh_supervisor(const std::vector<std::string>& command,
                                        const std::string& exit_file) {
  std::vector<std::string> words = {"/bin/sh", "-c", kSupervisor, "ddprun-job", exit_file};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::vector<UniqueFd> job_processes(pid_t group, const std::string& id) {
  std::vector<UniqueFd> found;
  if (group <= 1 || (::kill(-group, 0) != 0 && errno == ESRCH)) return found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = pid_named(entry.path().filename().string());
    if (!pid || ::getpgid(*pid) != group) continue;
    // Facts read from here on are of the descriptor's process, unless that has ended.
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, *pid, 0)));
    ProcessStat stat;
    if (!process || ::getpgid(*pid) != group || !read_process_stat(*pid, &stat)) continue;
    if (stat.state == 'Z' || stat.state == 'X' || !was_started_as(*pid, id)) continue;
    found.push_back(std::move(process));
  }
  return found;
}

void end_processes(const std::vector<UniqueFd>& processes) {
  for (const UniqueFd& process : processes) {
    if (::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) != 0 &&
        errno != ESRCH) {
      throw_system_error("pidfd_send_signal", errno);
    }
  }
}

std::unique_ptr<Scheduler> ssh_scheduler(const Environment& environment, std::string ddprun) {
  return std::make_unique<SshScheduler>(environment, std::move(ddprun));
}

}  // namespace ddprun::submit
