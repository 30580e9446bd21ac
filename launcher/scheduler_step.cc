// SPDX-License-Identifier: Apache-2.0
#include "launcher/scheduler_step.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/fd_text.h"
#include "common/fnv1a.h"
#include "common/nodelist.h"
#include "common/process_facts.h"
#include "common/regular_file.h"
#include "common/shell_words.h"
#include "common/text.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

std::optional<int> number_in(const Environment& environment, const char* name) {
  return parse_number(find_variable(environment, name).value_or(""));
}

// Jobs that share a node almost always get different ports, below the ephemeral ones.
std::uint16_t port_of(const std::string& job) {
  return static_cast<std::uint16_t>(kDefaultRendezvousPort + fnv1a(job) % 3000);
}

std::optional<SchedulerStep> slurm_step(const Environment& environment) {
  const auto job = find_variable(environment, env::kSlurmJobId);
  const auto step = find_variable(environment, env::kSlurmStepId);
  const auto list = find_variable(environment, env::kSlurmStepNodelist);
  if (!job || !step || !list) return std::nullopt;
  const std::string whole = *job + "." + *step;
  SchedulerStep found{
      .name = "Slurm step " + whole, .job_id = "slurm-" + whole, .port = port_of(whole)};
  found.one_each = number_in(environment, env::kSlurmStepNumTasks).value_or(1) > 1;
  auto hosts = expand_nodelist(*list);
  if (!hosts || hosts->empty()) {
    found.problem = concat("Slurm's ", env::kSlurmStepNodelist, "=", *list, " doesn't parse");
    return found;
  }
  found.first_host = hosts->front();
  found.num_hosts = static_cast<int>(hosts->size());
  found.one_each = number_in(environment, env::kSlurmStepNumTasks) == found.num_hosts;
  found.node_index = number_in(environment, env::kSlurmNodeId);
  return found;
}

std::string short_name(const std::string& host) { return host.substr(0, host.find('.')); }

// Returns the hosts of a PBS node file, which has a line for each slot.
std::vector<std::string> hosts_in(const std::string& node_file) {
  std::vector<std::string> hosts;
  std::unordered_set<std::string> known;
  std::istringstream lines(node_file);
  for (std::string host; lines >> host;) {
    if (known.insert(host).second) hosts.push_back(host);
  }
  return hosts;
}

std::optional<SchedulerStep> pbs_job(const SchedulerFacts& facts) {
  const auto job = find_variable(facts.environment, env::kPbsJobId);
  const auto path = find_variable(facts.environment, env::kPbsNodeFile);
  if (!job) return std::nullopt;
  SchedulerStep found{.name = "PBS job " + *job, .job_id = "pbs-" + *job, .port = port_of(*job)};
  // The job's script is its first task, and runs only on the first host; pbsdsh starts others.
  found.one_each = number_in(facts.environment, env::kPbsTaskNumber).value_or(1) > 1;
  const auto text = path ? facts.read_file(*path) : std::nullopt;
  const std::vector<std::string> hosts = hosts_in(text.value_or(""));
  if (hosts.empty()) {
    found.problem = concat(found.name, ": its ", env::kPbsNodeFile, "=", path.value_or(""),
                           text ? " names no host" : " can't be read on this node");
    return found;
  }
  found.first_host = hosts.front();
  found.num_hosts = static_cast<int>(hosts.size());
  const auto own = std::ranges::find_if(hosts, [&](const std::string& host) {
    return short_name(host) == short_name(facts.host_name);
  });
  if (own != hosts.end()) found.node_index = static_cast<int>(own - hosts.begin());
  return found;
}

// Returns `host` with its domain, from a hosts(5) file. The kubelet writes that of a pod whose
// template has a subdomain. Empty: it has none.
std::string qualified(const std::string& host, const std::string& hosts_file) {
  std::istringstream lines(hosts_file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    for (std::string word; words >> word;) {
      if (word.starts_with(host + ".")) return word;
    }
  }
  return "";
}

// Pods of an Indexed Job are named JOB-INDEX, those of a JobSet SET-REPLICATED_JOB-JOB-INDEX.
std::optional<SchedulerStep> indexed_job(const SchedulerFacts& facts) {
  const auto index = number_in(facts.environment, env::kJobCompletionIndex);
  const std::string host = short_name(facts.host_name);
  if (!index || !host.ends_with("-" + std::to_string(*index))) return std::nullopt;
  const std::string job = host.substr(0, host.rfind('-'));
  SchedulerStep found{.name = "Kubernetes Job " + job,
                      .job_id = "job-" + job,
                      .port = kDefaultRendezvousPort,
                      .one_each = true,
                      .may_be_alone = true,
                      .node_index = index};
  const std::string whole = qualified(host, facts.read_file("/etc/hosts").value_or(""));
  if (whole.empty()) {
    found.problem = found.name +
                    ": its pods have no names in DNS; give the pod template a subdomain, and make "
                    "a headless service of that name";
    return found;
  }
  found.first_host = job + "-0" + whole.substr(host.size());
  return found;
}

// nullopt: it can't be read, or is too large or no regular file.
std::optional<std::string> content_of(const std::string& path) {
  constexpr off_t kMostBytes = off_t{1} << 24;
  const RegularFile file = open_regular_file(path);
  if (!file.problem.empty() || file.info.st_size > kMostBytes) return std::nullopt;
  ReadText read = read_text(file.fd.get(), static_cast<std::size_t>(file.info.st_size));
  return read.error == 0 ? std::optional(std::move(read.text)) : std::nullopt;
}

}  // namespace

std::optional<SchedulerStep> scheduler_step(const SchedulerFacts& facts) {
  if (find_variable(facts.environment, env::kRunId)) return std::nullopt;
  if (auto step = slurm_step(facts.environment)) return step;
  if (auto job = pbs_job(facts)) return job;
  return indexed_job(facts);
}

std::string idle_nodes_note(const Environment& environment,
                            const std::vector<std::string>& arguments) {
  const auto job = find_variable(environment, env::kSlurmJobId);
  const bool is_step = find_variable(environment, env::kSlurmStepNodelist).has_value();
  const auto num_nodes = number_in(environment, env::kSlurmJobNumNodes);
  if (!job || is_step || num_nodes.value_or(1) < 2) return {};
  if (find_variable(environment, env::kRunId)) return {};
  std::string line = concat("srun --nodes=", *num_nodes, " --ntasks-per-node=1 ddprun");
  for (const std::string& word : arguments) line.append(1, ' ').append(shell_quoted(word));
  return concat("this machine alone, though Slurm job ", *job, " has ", *num_nodes,
                " nodes: without srun there is nobody on the others. On all of them: ", line,
                " (--nnodes=1 says that one is meant)");
}

std::optional<SchedulerStep> own_scheduler_step(const Environment& environment) {
  return scheduler_step(
      {.environment = environment, .host_name = host_name(), .read_file = content_of});
}

}  // namespace ddprun::launcher
