// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/slurm_script.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "common/shell_words.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/rank_map.h"

namespace ddprun::submit {
namespace {

using std::chrono::seconds;

// As a word of an #SBATCH line, which has no "$", and knows quotes.
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

// "%" begins a replacement in the name of an output file.
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

// Slurm gives as many nodes as it can without a wait, down to the fewest.
bool chooses_nodes(const JobFile& job) { return job.min_nodes < job.max_nodes; }

// It may lose nodes and go on.
bool survives_loss(const JobFile& job) { return job.spares > 0 || chooses_nodes(job); }

void add_size(const JobFile& job, SbatchLines& lines) {
  const NodeCount count = nodes_wanted(job);
  const std::string least = std::to_string(count.least);
  lines.add("nodes", count.least == count.most ? least : least + "-" + std::to_string(count.most));
  // Where Slurm may choose, tasks that are counted here would choose the fewest nodes.
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

// The srun line: $SLURM_JOB_NUM_NODES is what Slurm gave, where it could choose.
std::string step_line(const JobFile& job, const std::string& ddprun) {
  const bool is_chosen = chooses_nodes(job);
  CommandTraits traits{
      .ddprun = ddprun, .default_nodes = "1", .says_nodes = !is_chosen, .flags = {}};
  constexpr seconds kUsualNotice{120}, kLeft{60};
  if (const seconds notice = job.slurm.notice; notice > seconds(0) && notice != kUsualNotice) {
    // The rest is for those that don't leave, and for the last words.
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

}  // namespace

std::string slurm_log_path(const JobFile& job, const std::string& id) {
  return job.output_directory() + "/" + job.name + "-" + id + ".log";
}

std::string slurm_exit_path(const JobFile& job, const std::string& id) {
  return job.output_directory() + "/" + job.name + "-" + id + ".exit";
}

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
  script << "printf '%s\\n' \"$code\" >\"$exit_file.part\" && mv \"$exit_file.part\" "
            "\"$exit_file\"\nexit \"$code\"\n";
  return script.str();
}

}  // namespace ddprun::submit
