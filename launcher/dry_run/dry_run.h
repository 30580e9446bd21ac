// SPDX-License-Identifier: Apache-2.0
// Makes and prints the output of --dry-run. docs/dry-run.md has the fields.
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

// A worker's CPUs and GPU on its node.
struct ForecastPlace {
  std::string cpus;       // "0-3"; empty: not known here
  bool is_bound = false;  // false: it may use the same CPUs as ddprun
  std::string gpu;        // "3 0000:af:00.0"; empty: none, or not known here
};

struct NodeDryRun {
  std::string host;         // empty: not known
  bool is_here = false;     // this machine
  bool is_spare = false;    // waits without ranks
  std::optional<int> rank;  // nullopt: decided when the nodes meet
  std::optional<int> num_workers;
  std::optional<int> first_global_rank;
  std::vector<std::string> command;     // --hosts: starts its agent
  std::vector<std::string> arguments;   // --hosts: its ddprun's
  std::vector<WorkerForecast> workers;  // empty: not looked at; number not known: only the first
  std::vector<ForecastPlace> places;    // the workers'; empty: decided on the node
};

struct DryRun {
  LaunchConfig config;    // a node's ddprun's
  std::string mode;       // "local", "elastic", "static"
  std::string endpoint;   // HOST:PORT, with a text in <…> for what is decided later
  std::string origin;     // who named the endpoint
  std::string served_by;  // completes a sentence: "this node"
  std::string job_id;
  int num_nodes = 1;  // nodes with ranks, at most
  std::optional<int> world_size;
  std::vector<NodeDryRun> nodes;              // by node rank, spares last; not empty
  int described = 0;                          // index of the node whose workers are shown in full
  std::vector<ForecastVariable> environment;  // WorkerForecaster::common()
  std::string run_directory;                  // log files' directory; empty: no files
  std::optional<agent::IsolationPlan> isolation;  // nullopt: decided on each node
  std::vector<std::string> removed;               // variables that a worker doesn't inherit
  std::vector<std::string> forwarded;  // --hosts: names of variables that go to the hosts
  std::vector<std::string> assumed;    // one line each: if one is wrong, the ranks differ
  std::vector<std::string> notes;      // those that a real run would print
};

// Describes the job of this node. `ready` has no problems. Reads sysfs. If the nodes meet at a
// numeric address, asks the kernel whether this machine has it.
DryRun dry_run_of_node(const Preparation& ready);

// Describes a job on other hosts (--hosts). `plan` has no problems. Uses only the plan and this
// machine's file system, and asks no host. `with_all_workers`: shows all nodes' workers, else the
// first node's.
DryRun dry_run_of_hosts(const FleetPlan& plan, bool with_all_workers);

// Prints it for people. Pure.
std::string to_text(const DryRun& run);

// Prints it for scripts (--json), on one line. Invalid UTF-8 becomes U+FFFD. Pure.
std::string to_json(const DryRun& run);

// A limit of the job by its option's name; times are in seconds. nullopt: no limit.
struct NamedLimit {
  std::string option;
  std::optional<double> value;
  bool is_time = true;
};
std::vector<NamedLimit> limits_of(const LaunchConfig& config);

}  // namespace ddprun::launcher
