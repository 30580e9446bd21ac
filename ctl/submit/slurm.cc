// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/slurm.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ending.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/nodelist.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/shell_words.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/job_record.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/run_program.h"

namespace ddprun::submit {
namespace {

using std::chrono::seconds;

// Quotes a word for an #SBATCH line, which knows quotes but no "$".
std::string sbatch_word(const std::string& text) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%[]*&|!()";
  if (text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') word += '\\';
    word += letter;
  }
  return word + "\"";
}

// Doubles "%", which begins a replacement in the name of an output file.
std::string as_file_pattern(const std::string& path) {
  std::string pattern;
  for (const char letter : path) pattern.append(letter == '%' ? 2 : 1, letter);
  return pattern;
}

std::string slurm_time(seconds time) {
  std::ostringstream text;
  const auto count = time.count();
  text << count / 86'400 << '-' << std::setfill('0') << std::setw(2) << count / 3600 % 24 << ':'
       << std::setw(2) << count / 60 % 60 << ':' << std::setw(2) << count % 60;
  return text.str();
}

class SbatchLines {
 public:
  explicit SbatchLines(std::ostream& out) : out_(out) {}

  void add(const char* option, const std::string& value) {
    if (!value.empty()) out_ << "#SBATCH --" << option << '=' << sbatch_word(value) << '\n';
  }
  void add(const char* option, std::optional<int> value) {
    if (value) add(option, std::to_string(*value));
  }
  void add_switch(const char* option) { out_ << "#SBATCH --" << option << '\n'; }
  void add_line(const std::string& words) { out_ << "#SBATCH " << words << '\n'; }

 private:
  std::ostream& out_;
};

std::optional<int> cpus_per_task(const JobFile& job) {
  if (job.slurm.cpus_per_node) return job.slurm.cpus_per_node;
  const std::string& workers = job.workers_per_node;
  const bool is_number = !workers.empty() && workers.front() >= '1' && workers.front() <= '9';
  return is_number ? std::optional(std::stoi(workers)) : std::nullopt;
}

// Whether Slurm chooses the number of nodes: as many as it can give without a wait, at least the
// fewest.
bool chooses_nodes(const JobFile& job) { return job.min_nodes < job.max_nodes; }

// Whether the job may lose nodes and go on.
bool survives_loss(const JobFile& job) { return job.spares > 0 || chooses_nodes(job); }

void add_size(const JobFile& job, SbatchLines& lines) {
  const NodeCount count = nodes_wanted(job);
  const std::string least = std::to_string(count.least);
  lines.add("nodes", count.least == count.most ? least : least + "-" + std::to_string(count.most));
  // If Slurm chooses the number of nodes, a count of tasks would make it choose the fewest.
  if (!chooses_nodes(job)) lines.add("ntasks-per-node", 1);
  lines.add("cpus-per-task", cpus_per_task(job));
  lines.add("gpus-per-node", job.slurm.gpus_per_node);
  lines.add("mem", job.slurm.memory);
  if (job.slurm.exclusive) lines.add_switch("exclusive");
  if (survives_loss(job)) lines.add_switch("no-kill");
}

void add_sbatch_lines(const JobFile& job, SbatchLines& lines) {
  const SlurmKeys& keys = job.slurm;
  lines.add("job-name", job.name);
  add_size(job, lines);
  lines.add("partition", keys.partition);
  lines.add("account", keys.account);
  lines.add("qos", keys.qos);
  lines.add("constraint", keys.constraint);
  lines.add("reservation", keys.reservation);
  lines.add("nodelist", keys.nodelist);
  lines.add("exclude", keys.exclude);
  if (job.limits.time) lines.add("time", slurm_time(*job.limits.time));
  lines.add("chdir", job.work_directory());
  lines.add("output", as_file_pattern(job.output_directory() + "/" + job.name) + "-%j.log");
  lines.add("open-mode", "append");
  if (keys.notice > seconds(0)) lines.add("signal", concat("USR1@", keys.notice.count()));
  lines.add_switch(job.restarts.requeues > 0 ? "requeue" : "no-requeue");
  for (const std::string& option : keys.options) lines.add_line(option);
}

// Makes the srun line. $SLURM_JOB_NUM_NODES is the number of nodes that Slurm chose.
std::string step_line(const JobFile& job, const std::string& ddprun) {
  const bool is_chosen = chooses_nodes(job);
  CommandTraits traits{
      .ddprun = ddprun, .default_nodes = "1", .says_nodes = !is_chosen, .flags = {}};
  constexpr seconds kUsualNotice{120}, kLeft{60};
  if (const seconds notice = job.slurm.notice; notice > seconds(0) && notice != kUsualNotice) {
    // The remaining time is for workers that don't leave, and for the last output.
    traits.flags.push_back(
        concat("--preemption-notice=", std::max(notice - kLeft, notice / 2).count()));
  }
  const std::vector<std::string> words = ddprun_command(job, traits);
  std::string line = "srun --kill-on-bad-exit=0";
  if (survives_loss(job)) line += " --no-kill";
  if (is_chosen) line += " --ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1";
  if (const auto cpus = cpus_per_task(job)) line += concat(" --cpus-per-task=", *cpus);
  line += " " + shell_quoted(words.front());
  if (is_chosen) {
    line += concat(" --nnodes=", job.min_nodes, ":$((SLURM_JOB_NUM_NODES");
    line += job.spares > 0 ? concat(" - ", job.spares, "))") : "))";
  }
  return line + " " + shell_line({words.begin() + 1, words.end()});
}

void check_for_slurm(const JobFile& job) {
  std::string problems;
  const auto refuse = [&](const std::string& what) {
    problems += (problems.empty() ? "" : "\n") + job.path + ": " + what;
  };
  if (job.output_directory().find('\\') != std::string::npos) {
    refuse("log_dir has a \\ in it, which Slurm takes out of the names of files");
  }
  for (const std::string& option : job.slurm.options) {
    if (!option.starts_with('-')) refuse("to.slurm.options: " + one_line(option) + " is no option");
    if (option.find('\n') != std::string::npos) refuse("to.slurm.options: an option is one line");
  }
  if (!problems.empty()) throw Error(ErrorCode::kInvalidArgument, problems);
}

// Returns the value of " Key=value" in scontrol's line; it ends at the next blank.
std::string_view value_of(std::string_view line, std::string_view key) {
  const std::string wanted = " " + std::string(key) + "=";
  std::size_t begin = line.find(wanted);
  if (begin == std::string_view::npos) return {};
  begin += wanted.size();
  return line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

std::optional<WallTime> time_in(std::string_view text) {
  const auto since = parsed_number<long long>(text);
  if (!since || *since <= 0) return std::nullopt;
  return WallTime(std::chrono::seconds(*since));
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Reads "CANCELLED by 1000", "FAILED".
Phase phase_of(std::string_view state) {
  const std::string_view word = state.substr(0, state.find(' '));
  if (word == "COMPLETED") return Phase::kSucceeded;
  if (word == "CANCELLED") return Phase::kCancelled;
  if (is_one_of(word, {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
                       "SPECIAL_EXIT", "RESV_DEL_HOLD"})) {
    return Phase::kQueued;
  }
  if (is_one_of(word, {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING",
                       "RESIZING"})) {
    return Phase::kRunning;
  }
  if (is_one_of(word, {"FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
                       "PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"})) {
    return Phase::kFailed;
  }
  return Phase::kUnknown;
}

// Reads "13:0" or "0:9", code and signal. If Slurm ended the job itself, returns ddprun's code for
// that.
std::optional<int> exit_code_in(std::string_view text, std::string_view state, Phase phase) {
  if (!is_over(phase) || phase == Phase::kCancelled) return std::nullopt;
  const auto as_int = [](ExitCode code) { return static_cast<int>(code); };
  if (is_one_of(state, {"TIMEOUT", "DEADLINE"})) return as_int(ExitCode::kTimeLimit);
  if (is_one_of(state, {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}))
    return as_int(ExitCode::kRetryable);
  const std::size_t colon = text.find(':');
  const auto code = parsed_number<long long>(text.substr(0, colon));
  const auto signal = colon == std::string_view::npos
                          ? std::optional(0LL)
                          : parsed_number<long long>(text.substr(colon + 1));
  if (!code || !signal) return std::nullopt;
  if (*code == 0 && *signal != 0) return exit_status_for_signal(static_cast<int>(*signal));
  return static_cast<int>(*code);
}

void set_phase(std::string_view state, std::string_view exit_code, JobState& job) {
  job.phase = phase_of(state);
  job.exit_code = exit_code_in(exit_code, state.substr(0, state.find(' ')), job.phase);
}

std::vector<std::string> nodes_in(std::string_view list) {
  if (list.empty() || list.front() == '(' || list == "None assigned") return {};
  return expand_nodelist(list).value_or(std::vector<std::string>{});
}

const std::vector<std::string> kSbatch = {"sbatch", "--parsable"};

// Asks one of Slurm's programs. Not for sbatch, whose environment becomes the job's.
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

// nullopt: Slurm doesn't know the job, or has forgotten it.
std::optional<SlurmJob> ask_scontrol(const std::string& id) {
  const ProgramEnd end = ask_slurm({"scontrol", "--oneliner", "show", "job", id});
  if (end.status == 0) return parse_scontrol(end.out);
  if (failure_text(end).find("Invalid job id") == std::string::npos)
    refuse_as_slurm("scontrol", end);
  return std::nullopt;
}

class SlurmScheduler : public Scheduler {
 public:
  SlurmScheduler(const Environment& environment, std::string ddprun)
      : records_(environment), ddprun_(std::move(ddprun)) {}

  const char* name() const override { return "slurm"; }
  Plan plan(const JobFile& job) override {
    return {.how = shell_line(kSbatch) + ", over standard input",
            .text = slurm_script(job, ddprun_),
            .ranks = rank_map(job, "node # of the step"),
            .notes = notes_of(job)};
  }

  std::string submit(const JobFile& job) override {
    const std::string script = slurm_script(job, ddprun_);
    std::error_code error;
    // Slurm makes no directories: without this one the job would fail without output.
    std::filesystem::create_directories(job.output_directory(), error);
    if (error) throw WriteError("can't make " + job.output_directory() + ": " + error.message());
    const ProgramEnd end = run_program(
        {.argv = kSbatch, .input = script, .environment = {}, .without = job.environment_without});
    const auto id = end.status == 0 ? parse_sbatch(end.out) : std::nullopt;
    if (!id) refuse_as_slurm("sbatch", end);
    // The same names as in the script.
    const std::string output = concat(job.output_directory(), "/", job.name, "-", *id);
    const JobRecord record{.id = "slurm:" + *id,
                           .name = job.name,
                           .host = host_name(),
                           .submitted = std::chrono::system_clock::now(),
                           .log = output + ".log",
                           .exit_file = output + ".exit",
                           .nodes = {},
                           .command = job.command};
    try {
      records_.add(record);
    } catch (const Error& problem) {  // the job exists nevertheless
      log_warning(record.id,
                  " has no record here, so ddprunctl jobs won't show it: ", problem.what());
    }
    return *id;
  }

  std::vector<JobState> list() override {
    std::vector<JobState> states;
    for (const JobRecord& record : records_.all_of(name())) {
      // A job with an exit code is over, so Slurm needn't be asked for each old job.
      const auto exit = read_exit_file(record.exit_file);
      states.push_back(exit ? state_of_record(record, exit, records_.is_cancelled(record.id), "")
                            : status_or_unknown(record));
    }
    std::stable_partition(states.begin(), states.end(),
                          [](const JobState& state) { return !is_over(state.phase); });
    return states;
  }

  JobState status(const std::string& id) override {
    check_id(id);
    if (auto job = ask_scontrol(id)) {
      // The code that the job's script recorded wins. Slurm has no codes above 255, and uses
      // signals of its own.
      const auto record = records_.find("slurm:" + id);
      if (record && job->state.phase == Phase::kFailed) {
        if (const auto exit = read_exit_file(record->exit_file)) job->state.exit_code = exit->code;
      }
      return job->state;
    }
    return state_of_forgotten(id);
  }

  void cancel(const std::string& id) override {
    check_id(id);
    const ProgramEnd end = ask_slurm({"scancel", id});
    // scancel calls the id invalid also for a job that is over.
    if (end.status != 0 && failure_text(end).find("Invalid job id") == std::string::npos) {
      refuse_as_slurm("scancel", end);
    }
    if (end.status != 0) {
      status(id);  // throws if nobody knows the job
    } else if (records_.find("slurm:" + id)) {
      records_.mark_cancelled("slurm:" + id);
    }
  }

  void logs(const std::string& id, bool follow, const LogView& view) override {
    check_id(id);
    std::string path;
    if (const auto record = records_.find("slurm:" + id)) {
      path = record->log;
    } else if (const auto job = ask_scontrol(id)) {
      path = job->output;
    }
    if (path.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "slurm:" + id + ": it is not known where its log is");
    }
    Deadline silence = Deadline::after(kMostSilence);
    show_log(path, follow, view, [&] {
      try {
        const Phase phase = status(id).phase;
        silence = Deadline::after(kMostSilence);
        return is_over(phase) || phase == Phase::kUnknown;
      } catch (const Error& error) {
        if (!may_pass(error) || silence.expired()) throw;
        return false;  // the controller is away, but the log may still grow
      }
    });
  }

 private:
  JobState status_or_unknown(const JobRecord& record) {
    try {
      return status(record.id.substr(record.id.find(':') + 1));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      return state_of_record(record, {}, records_.is_cancelled(record.id), error.what());
    }
  }

  // Returns the state of a job that Slurm has forgotten, from sacct, else from the job's own files.
  JobState state_of_forgotten(const std::string& id) const {
    const ProgramEnd end = ask_slurm({"sacct", "--noheader", "--parsable2", "--allocations",
                                      "--jobs=" + id, std::string("--format=") + kSacctFields});
    if (auto state = end.status == 0 ? parse_sacct(end.out) : std::nullopt) return *state;
    const auto record = records_.find("slurm:" + id);
    if (!record) {
      throw Error(ErrorCode::kInvalidArgument,
                  "slurm:" + id +
                      ": Slurm knows no such job (any more), and it was "
                      "not submitted from this home directory");
    }
    return state_of_record(*record, read_exit_file(record->exit_file),
                           records_.is_cancelled(record->id), "Slurm has forgotten it");
  }

  const JobRecords records_;
  const std::string ddprun_;
};

}  // namespace

std::string slurm_script(const JobFile& job, const std::string& ddprun) {
  check_for_slurm(job);
  std::ostringstream script;
  script << "#!/bin/bash\n# " << job.name << ", by ddprunctl " DDPRUN_VERSION " from "
         << one_line(job.path) << '\n';
  SbatchLines lines(script);
  add_sbatch_lines(job, lines);
  if (!job.slurm.setup.empty()) {
    script << job.slurm.setup << (job.slurm.setup.ends_with('\n') ? "" : "\n");
  }
  for (const auto& [name, value] : job.environment) {
    script << "export " << name << '=' << shell_quoted(value) << '\n';
  }
  script << "exit_file=" << shell_quoted(job.output_directory() + "/" + job.name + "-")
         << "\"$SLURM_JOB_ID\".exit\n"
         << "rm -f \"$exit_file\"\ncode=0\n"
         << step_line(job, ddprun) << " || code=$?\n";
  if (job.restarts.requeues > 0) {
    script << "if [ \"$code\" = 75 ] && [ \"${SLURM_RESTART_COUNT:-0}\" -lt "
           << job.restarts.requeues << " ]; then\n"
           << "  scontrol requeue \"$SLURM_JOB_ID\" && exit 75\nfi\n";
  }
  // In a folder that others can write to, a name that can be guessed could be a link of theirs.
  script << "part=$(mktemp \"$exit_file.XXXXXX\") && chmod =rw \"$part\" && printf '%s\\n' "
            "\"$code\" >\"$part\" &&\n  mv -fT \"$part\" \"$exit_file\"\nexit \"$code\"\n";
  return script.str();
}

std::optional<SlurmJob> parse_scontrol(std::string_view text) {
  const std::string line = " " + std::string(text.substr(0, text.find('\n')));
  const std::string_view id = value_of(line, "JobId");
  const std::string_view state = value_of(line, "JobState");
  if (!parsed_number<long long>(id) || state.empty()) return std::nullopt;
  SlurmJob job;
  job.state.id = "slurm:" + std::string(id);
  job.state.name = one_line(value_of(line, "JobName"));
  set_phase(state, value_of(line, "ExitCode"), job.state);
  const std::string_view reason = value_of(line, "Reason");
  if (reason != "None") job.state.reason = one_line(reason);
  job.state.nodes = nodes_in(value_of(line, "NodeList"));
  job.state.submitted = time_in(value_of(line, "SubmitTime"));
  // StartTime of a waiting job is when it may begin.
  if (job.state.phase != Phase::kQueued) job.state.began = time_in(value_of(line, "StartTime"));
  if (is_over(job.state.phase)) job.state.ended = time_in(value_of(line, "EndTime"));
  job.output = value_of(line, "StdOut");
  return job;
}

std::optional<JobState> parse_sacct(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t bar = line.find('|');
    fields.push_back(line.substr(0, bar));
    if (bar == std::string_view::npos) break;
    line.remove_prefix(bar + 1);
  }
  constexpr std::size_t kFields = 8;
  if (fields.size() != kFields || !parsed_number<long long>(fields[0])) return std::nullopt;
  JobState job;
  job.id = "slurm:" + std::string(fields[0]);
  job.name = one_line(fields[1]);
  set_phase(fields[2], fields[3], job);
  job.submitted = time_in(fields[4]);
  job.began = time_in(fields[5]);
  job.ended = time_in(fields[6]);
  job.nodes = nodes_in(fields[7]);
  return job;
}

std::optional<std::string> parse_sbatch(std::string_view text) {
  const std::string_view id = text.substr(0, text.find_first_of(";\n"));
  return parsed_number<long long>(id) ? std::optional(std::string(id)) : std::nullopt;
}

std::unique_ptr<Scheduler> slurm_scheduler(const Environment& environment, std::string ddprun) {
  return std::make_unique<SlurmScheduler>(environment, std::move(ddprun));
}

}  // namespace ddprun::submit
