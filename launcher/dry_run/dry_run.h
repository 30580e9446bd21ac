// SPDX-License-Identifier: Apache-2.0
// The output of --dry-run, as plain data, and printed. docs/dry-run.md has the fields.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/isolation/isolation_plan.h"
#include "launcher/dry_run/worker_forecast.h"
#include "launcher/launch_config.h"

namespace ddprun::launcher {

struct FleetPlan;
struct Preparation;

// The place of a worker on its node.
struct ForecastPlace {
  std::string cpus;       // "0-3"; empty: not known here
  bool is_bound = false;  // else it may use them as ddprun may
  std::string gpu;        // "3 0000:af:00.0"; empty: none, or not known here
};

struct NodeDryRun {
  std::string host;         // empty: not known
  bool is_here = false;     // this machine
  bool is_spare = false;    // waits, and has no ranks
  std::optional<int> rank;  // nullopt: decided when the nodes meet
  std::optional<int> num_workers;
  std::optional<int> first_global_rank;
  std::vector<std::string> command;     // --hosts: leads to its agent
  std::vector<std::string> arguments;   // --hosts: of its ddprun
  std::vector<WorkerForecast> workers;  // empty: not looked at; number not known: the first
  std::vector<ForecastPlace> places;    // of the workers; empty: decided on the node
};

struct DryRun {
  LaunchConfig config;    // of a node's ddprun
  std::string mode;       // "local", "elastic", "static"
  std::string endpoint;   // HOST:PORT, with a text in <…> for what is decided later
  std::string origin;     // who said so
  std::string served_by;  // a sentence's end: "this node"
  std::string job_id;
  int num_nodes = 1;  // with ranks, at most
  std::optional<int> world_size;
  std::vector<NodeDryRun> nodes;                  // by node rank, spares last; not empty
  int described = 0;                              // the node whose workers are shown in full
  std::vector<ForecastVariable> environment;      // WorkerForecaster::common()
  std::string run_directory;                      // of log files; empty: none
  std::optional<agent::IsolationPlan> isolation;  // nullopt: decided on each node
  std::vector<std::string> removed;               // variables that a worker doesn't inherit
  std::vector<std::string> forwarded;  // --hosts: names of variables that go to the hosts
  std::vector<std::string> assumed;    // one line each: without it the ranks are others
  std::vector<std::string> notes;      // that a run would tell
};

// `ready` has no problems. Reads sysfs; where the nodes meet at a numeric address it asks the
// kernel whether this machine has it.
DryRun dry_run_of_node(const Preparation& ready);

// The same of a job on other hosts (--hosts). `plan` has no problems. Says what it and this
// machine's file system tell: no host is asked. `with_all_workers`: of each node, else of the first
// only.
DryRun dry_run_of_hosts(const FleetPlan& plan, bool with_all_workers);

// For people. Pure.
std::string to_text(const DryRun& run);

// --json, for scripts: one line. Bytes that are no UTF-8 come out as U+FFFD. Pure.
std::string to_json(const DryRun& run);

// Limits of the job by the names of their options; times in seconds. nullopt: no limit.
struct NamedLimit {
  std::string option;
  std::optional<double> value;
  bool is_time = true;
};
std::vector<NamedLimit> limits_of(const LaunchConfig& config);

}  // namespace ddprun::launcher
