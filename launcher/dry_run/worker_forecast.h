// SPDX-License-Identifier: Apache-2.0
// Forecasts a job's first round before its nodes have met: each worker's variables, command and
// files. The code for real workers computes them (agent/worker_environment.h, agent/output/). A
// value is known if it doesn't depend on what is decided later. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/output/output_options.h"
#include "agent/worker_environment.h"
#include "common/endpoint.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {

// One node of the round; the list of them is by node rank.
struct NodeForecast {
  int num_workers = 1;
  std::string addr;  // the address at which its peers reach it; empty: not known
};

struct RoundKnowledge {
  std::vector<NodeForecast> nodes;  // not empty
  std::string role;                 // the same on all nodes
  bool ranks = true;                // each node's rank is known
  bool num_nodes = true;            // the number of nodes that meet is known
  bool num_workers = true;          // each node's number of workers is known
  bool is_static = false;           // MASTER_ADDR and MASTER_PORT are `endpoint`
  bool is_proxied = false;          // MASTER_ADDR is this node's proxy
  Endpoint endpoint;
  std::uint16_t store_port = 0;  // MASTER_PORT, unless `is_static`; 0: any free one
};

// Returns the rounds by node rank. An unknown value is any number, or a text in <…> that says what
// will be there.
std::vector<membership::StartRound> forecast_rounds(const RoundKnowledge& knowledge);

// A round that differs from `round` in one unknown value. Variables that differ between the two are
// decided later: `decided` says by what. Empty: the value itself says it.
struct OtherRound {
  membership::StartRound round;
  std::string decided;
};
std::vector<OtherRound> other_rounds(const RoundKnowledge& knowledge,
                                     const membership::StartRound& round);

// Facts that all workers of a node share.
struct WorkerScene {
  agent::WorkerEnvironmentOptions environment;
  bool is_num_workers_known = true;
  agent::WorkerCommand command;
  agent::OutputOptions output;
  std::string log_directory;     // the first round's; empty: no files
  std::string socket_directory;  // the workers' socket is in it
};

struct ForecastVariable {
  std::string name;
  std::string value;      // if decided later: what is known of it, with a text in <…>
  bool is_later = false;  // decided when the job starts
  bool operator==(const ForecastVariable&) const = default;
};

struct WorkerForecast {
  int local_rank = 0;
  std::optional<int> global_rank;
  std::vector<std::string> command;
  // Variables that ddprun sets and that differ from WorkerForecaster::common(), by name.
  std::vector<ForecastVariable> environment;
  std::vector<std::string> without;  // names in common() that this worker doesn't have
  std::vector<std::string> files;    // log files
};

class WorkerForecaster {
 public:
  // `round` is one node's, which stands for all: for nodes that differ only in rank and number of
  // workers, the same variables are decided later.
  WorkerForecaster(WorkerScene scene, const RoundKnowledge& knowledge,
                   const membership::StartRound& round);

  // Forecasts all workers of the node, or the first one if their number isn't known.
  std::vector<WorkerForecast> workers(const membership::StartRound& round, int num_workers) const;

  // Returns all variables that ddprun sets for the worker with local rank 0 of that node, by name.
  std::vector<ForecastVariable> common() const;
  // Variables that ddprun inherits and doesn't pass on.
  const std::vector<std::string>& removed() const { return removed_; }

 private:
  std::vector<std::string> variables(const WorkerScene& scene, const membership::StartRound& round,
                                     int local_rank) const;
  void find_names(const membership::StartRound& round);
  void find_later(const RoundKnowledge& knowledge, const membership::StartRound& round);
  ForecastVariable as_known(const std::string& variable) const;
  void compare(const std::vector<std::string>& own, WorkerForecast& worker) const;
  std::vector<std::string> files_of(int local_rank, int global_rank) const;

  // Constant after construction.
  WorkerScene scene_;  // its environment has only variables that matter
  bool are_ranks_known_ = true;
  std::vector<std::string> common_;  // "NAME=value"
  std::vector<std::string> removed_;
  std::map<std::string, std::string> later_;  // name → text shown in its place; empty: the value
};

}  // namespace ddprun::launcher
