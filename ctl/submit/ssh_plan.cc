// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/ssh_plan.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "common/error.h"
#include "common/json.h"
#include "common/log.h"
#include "ctl/submit/ddprun_command.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

// Signals are for ddprun, which is in the same process group: the shell waits for its end.
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
  // Their values are the launcher's own, and on no command line.
  for (const auto& variable : job.environment) add("env", variable.first);
  if (job.limits.time) add("time-limit", std::to_string(job.limits.time->count()));
  JobFile here = job;
  here.ddprun.clear();
  return ddprun_command(here, traits);
}

Plan parse_dry_run(std::string_view text) {
  Plan plan;
  try {
    const json::value all = json::parse(text);
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

std::vector<std::string> ssh_supervisor(const std::vector<std::string>& command,
                                        const std::string& exit_file) {
  std::vector<std::string> words = {"/bin/sh", "-c", kSupervisor, "ddprun-job", exit_file};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace ddprun::submit
