// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/flag_check.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "common/duration.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/decided_flags.h"
#include "ctl/submit/run_program.h"

namespace ddprun::submit {
namespace {

// What `ddprun --show-config` says with the flags that a job means. Empty, and Error: as
// check_flags().
std::string config_of(const JobFile& job, const std::string& ddprun) {
  JobFile here = job;
  here.ddprun.clear();
  const CommandTraits traits{
      .ddprun = ddprun, .default_nodes = "1", .says_nodes = true, .flags = {}};
  std::vector<std::string> words = ddprun_command(here, traits);
  words.insert(words.begin() + 1, "--show-config");
  ProgramEnd end;
  try {
    end = run_program({.argv = words, .input = {}, .environment = {}});
  } catch (const Error&) {
    return {};
  }
  if (end.status == 0) return end.out;
  if (end.status != static_cast<int>(ExitCode::kUsage)) return {};
  const std::size_t last = end.err.find_last_not_of('\n');
  throw Error(ErrorCode::kInvalidArgument,
              last == std::string::npos ? failure_text(end) : end.err.substr(0, last + 1));
}

}  // namespace

std::string ddprun_beside() {
  const std::string beside = own_folder() + "/ddprun";
  return ::access(beside.c_str(), X_OK) == 0 ? beside : "ddprun";
}

std::string check_flags(const JobFile& job, const std::string& ddprun, std::string_view place) {
  const std::string config = config_of(job, ddprun);
  if (config.empty() || job.flags.empty()) return config;
  JobFile bare = job;
  bare.flags.clear();
  const std::string without = config_of(bare, ddprun);
  if (without.empty()) return config;
  std::string all;
  for (const std::string& line : decided_flags(place, without, config)) {
    all += concat(all.empty() ? "" : "\n", job.path, ": ", line);
  }
  if (!all.empty()) throw Error(ErrorCode::kInvalidArgument, all);
  return config;
}

std::optional<std::chrono::milliseconds> shown_time(std::string_view config,
                                                    const std::string& key) {
  const std::string start = key + " = ";
  while (!config.empty()) {
    std::string_view line = config.substr(0, config.find('\n'));
    config.remove_prefix(std::min(line.size() + 1, config.size()));
    if (line.starts_with('#')) line.remove_prefix(1);  // by default
    if (!line.starts_with(start)) continue;
    std::string_view value = line.substr(start.size());
    value = value.substr(0, value.find("  #"));
    if (value.size() > 1 && value.front() == '"') value = value.substr(1, value.size() - 2);
    if (const auto seconds = parse_decimal(value)) {
      return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1'000));
    }
    return parse_duration(value);
  }
  return std::nullopt;
}

}  // namespace ddprun::submit
