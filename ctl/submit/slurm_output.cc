// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/slurm_output.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "common/exit_codes.h"
#include "common/log.h"
#include "common/nodelist.h"

namespace ddprun::submit {
namespace {

std::optional<long long> whole_in(std::string_view text) {
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = !text.empty() && error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(value) : std::nullopt;
}

// Of " Key=value" in a line of scontrol's; a value ends at the next blank.
std::string_view value_of(std::string_view line, std::string_view key) {
  const std::string wanted = " " + std::string(key) + "=";
  std::size_t begin = line.find(wanted);
  if (begin == std::string_view::npos) return {};
  begin += wanted.size();
  return line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

std::optional<WallTime> time_in(std::string_view text) {
  const auto since = whole_in(text);
  if (!since || *since <= 0) return std::nullopt;
  return WallTime(std::chrono::seconds(*since));
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// "CANCELLED by 1000", "FAILED".
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

// "13:0", "0:9": code and signal. What Slurm ended by itself has the code that it means to ddprun.
std::optional<int> exit_code_in(std::string_view text, std::string_view state, Phase phase) {
  if (!is_over(phase) || phase == Phase::kCancelled) return std::nullopt;
  const auto as_int = [](ExitCode code) { return static_cast<int>(code); };
  if (is_one_of(state, {"TIMEOUT", "DEADLINE"})) return as_int(ExitCode::kTimeLimit);
  if (is_one_of(state, {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}))
    return as_int(ExitCode::kRetryable);
  const std::size_t colon = text.find(':');
  const auto code = whole_in(text.substr(0, colon));
  const auto signal =
      colon == std::string_view::npos ? std::optional(0LL) : whole_in(text.substr(colon + 1));
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

}  // namespace

std::optional<SlurmJob> parse_scontrol(std::string_view text) {
  const std::string line = " " + std::string(text.substr(0, text.find('\n')));
  const std::string_view id = value_of(line, "JobId");
  const std::string_view state = value_of(line, "JobState");
  if (!whole_in(id) || state.empty()) return std::nullopt;
  SlurmJob job;
  job.state.id = "slurm:" + std::string(id);
  job.state.name = one_line(value_of(line, "JobName"));
  set_phase(state, value_of(line, "ExitCode"), job.state);
  const std::string_view reason = value_of(line, "Reason");
  if (reason != "None") job.state.reason = one_line(reason);
  job.state.nodes = nodes_in(value_of(line, "NodeList"));
  job.state.submitted = time_in(value_of(line, "SubmitTime"));
  // Of one that waits it is when it may begin.
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
  if (fields.size() != kFields || !whole_in(fields[0])) return std::nullopt;
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
  return whole_in(id) ? std::optional(std::string(id)) : std::nullopt;
}

}  // namespace ddprun::submit
