// SPDX-License-Identifier: Apache-2.0
#include "launcher/prepare.h"

#include <unistd.h>

#include <ctime>

#include <utility>

#include "agent/preflight/node_checks.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "launcher/config_file.h"
#include "launcher/num_workers.h"
#include "launcher/paste_line.h"
#include "launcher/topology_label.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::launcher {
namespace {

// With fewer not even one worker starts. With enough for that, what is short is said when it is.
constexpr std::size_t kMinOpenFiles = 32;

void find_workers(Preparation& result, const std::string& argv0) {
  JobPlan& plan = result.plan;
  const auto variable = plan.environment.find(env::kCudaVisibleDevices);
  const auto visible =
      variable == plan.environment.end() ? std::nullopt : std::optional(variable->second);
  const NumWorkers workers = num_workers(plan.config.nproc_per_node, real_machine(), visible);
  plan.num_workers = workers.count;
  if (!workers.problem.empty()) result.problems.push_back(workers.problem);
  if (std::string note = gpu_note(workers.count, real_machine(), visible); !note.empty()) {
    result.notes.push_back(std::move(note));
  }

  plan.program =
      find_program({.config = plan.config,
                    .argv0 = argv0,
                    .own_folder = own_folder(),
                    .path = find_variable(plan.environment, env::kPath).value_or("/bin:/usr/bin"),
                    .python_exec = find_variable(plan.environment, env::kPythonExec).value_or("")},
                   real_file_system());
  if (!plan.program.problem.empty()) result.problems.push_back(plan.program.problem);
  if (!plan.program.note.empty()) result.notes.push_back(plan.program.note);
  if (plan.num_workers > 1 && !plan.environment.contains(env::kOmpNumThreads)) {
    result.notes.push_back("OMP_NUM_THREADS=1 for each worker, so that " +
                           std::to_string(plan.num_workers) +
                           " workers don't crowd each other out; set it to tune");
  }
}

bool counts_gpus(const std::string& nproc_per_node) {
  return nproc_per_node == "gpu" || nproc_per_node == "auto";
}

// In a job of one node there is no other to take its place: what is wrong is only said.
void check_fitness(Preparation& result) {
  JobPlan& plan = result.plan;
  plan.needs = {
      .program = plan.program.argv.front(),
      .script = plan.program.script,
      .directories = {temporary_directory(plan.environment)},  // where sockets can go, too
      .num_workers = plan.num_workers,
      .num_gpus = counts_gpus(plan.config.nproc_per_node) ? agent::num_listed_gpus() : 0};
  for (const auto& problem : check_node(plan.needs, gather_node_facts(plan.needs))) {
    auto& lines = is_replaceable(plan.config) ? result.unfit : result.notes;
    lines.push_back("preflight: " + to_text(problem));
  }
}

// The config files are read only where they may decide: for a job of several nodes.
void find_rendezvous(Preparation& result) {
  JobPlan& plan = result.plan;
  std::vector<ConfigFile> files;
  if (plan.config.max_nodes > 1) {
    try {
      files = load_config_files(plan.environment);
    } catch (const Error& error) {
      result.problems.emplace_back(error.what());
      return;
    }
    plan.topology = topology_label(plan.config, plan.environment, files);
    for (const ConfigFile& file : files) {
      if (plan.preflight.empty()) plan.preflight = file.preflight;
    }
  }
  const DiscoveryInput input{.config = plan.config,
                             .environment = plan.environment,
                             .files = files,
                             .user_id = ::getuid(),
                             .random_id = random_id()};
  const Discovery discovery = discover_endpoint(input);
  if (discovery.nothing_found) {
    result.problems.push_back(
        no_endpoint_message(plan.config, primary_address(), discovery.looked_at));
  } else if (!discovery.plan) {
    result.problems.push_back(discovery.problem);
  } else {
    plan.rendezvous = *discovery.plan;
  }
}

}  // namespace

std::string temporary_directory(const Environment& environment) {
  return find_variable(environment, env::kTmpdir).value_or("/tmp");
}

std::string runtime_directory(const Environment& environment) {
  constexpr char kMemory[] = "/dev/shm";
  const auto chosen = find_variable(environment, env::kTmpdir);
  if (chosen) return *chosen;
  return ::access(kMemory, W_OK | X_OK) == 0 ? kMemory : temporary_directory(environment);
}

bool is_replaceable(const LaunchConfig& config) {
  return config.max_nodes > 1 || config.spares > 0;
}

Preparation prepare(LaunchConfig config, Environment environment, const std::string& argv0) {
  Preparation result;
  if (const std::size_t limit = store::raise_file_limit(); limit < kMinOpenFiles) {
    result.problems.push_back("the limit of open files is " + std::to_string(limit) +
                              ", ddprun needs " + std::to_string(kMinOpenFiles) +
                              " and more with its workers: raise it (ulimit -Hn)");
    return result;
  }
  result.plan.config = std::move(config);
  result.plan.environment = std::move(environment);
  if (std::string problem = resolve_time_limit(result.plan.config.preemption,
                                               result.plan.environment, std::time(nullptr));
      !problem.empty()) {
    result.problems.push_back(std::move(problem));
  }
  find_workers(result, argv0);
  find_rendezvous(result);
  if (result.plan.config.preflight) result.plan.preflight = *result.plan.config.preflight;
  if (result.problems.empty()) check_fitness(result);
  return result;
}

}  // namespace ddprun::launcher
