// SPDX-License-Identifier: Apache-2.0
// A forecast of a job's first round, as far as it is known before its nodes have met. It has what
// one worker will be given: variables, command, files. The code for real workers makes it
// (agent/worker_environment.h, agent/output/). A value is known if it comes out the same however
// the rest is decided. Pure.
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

// One node of the round, by node rank.
struct NodeForecast {
  int num_workers = 1;
  std::string addr;  // as its peers reach it; empty: not known
};

struct RoundKnowledge {
  std::vector<NodeForecast> nodes;  // not empty
  std::string role;                 // of all nodes
  bool ranks = true;                // each node's rank is known
  bool num_nodes = true;            // so many nodes will meet
  bool num_workers = true;          // of each node
  bool is_static = false;           // MASTER_ADDR and MASTER_PORT are `endpoint`
  bool is_proxied = false;          // MASTER_ADDR is this node's proxy
  Endpoint endpoint;
  std::uint16_t store_port = 0;  // else MASTER_PORT; 0: any free one
};

// Rounds by node rank. An unknown value is any number, or a text in <…> that says what it will be.
std::vector<membership::StartRound> forecast_rounds(const RoundKnowledge& knowledge);

// `round` as it might be, too: all that differs is decided later, by what `decided` says. Empty:
// the text in its place says so itself.
struct OtherRound {
  membership::StartRound round;
  std::string decided;
};
std::vector<OtherRound> other_rounds(const RoundKnowledge& knowledge,
                                     const membership::StartRound& round);

// Facts that are the same for all workers of a node.
struct WorkerScene {
  agent::WorkerEnvironmentOptions environment;
  bool is_num_workers_known = true;
  agent::WorkerCommand command;
  agent::OutputOptions output;
  std::string log_directory;     // of the first round; empty: no files
  std::string socket_directory;  // of the workers' socket
};

struct ForecastVariable {
  std::string name;
  std::string value;      // decided later: what can be said of it, with a text in <…>
  bool is_later = false;  // decided when the job starts
  bool operator==(const ForecastVariable&) const = default;
};

struct WorkerForecast {
  int local_rank = 0;
  std::optional<int> global_rank;
  std::vector<std::string> command;
  // Variables that ddprun sets, by name, if they differ from WorkerForecaster::common().
  std::vector<ForecastVariable> environment;
  std::vector<std::string> without;  // names of those that it hasn't
  std::vector<std::string> files;    // log files
};

class WorkerForecaster {
 public:
  // `round`: of a node that stands for all. Nodes that differ only in their place and number of
  // workers have the same variables decided later.
  WorkerForecaster(WorkerScene scene, const RoundKnowledge& knowledge,
                   const membership::StartRound& round);

  // As many as the node has, or of a number that isn't known the first.
  std::vector<WorkerForecast> workers(const membership::StartRound& round, int num_workers) const;

  // All variables that ddprun sets for the worker with local rank 0 of the node that stands for
  // all, by name.
  std::vector<ForecastVariable> common() const;
  // Inherited, and not passed on.
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
  WorkerScene scene_;  // inherits only what matters
  bool are_ranks_known_ = true;
  std::vector<std::string> common_;  // "NAME=value"
  std::vector<std::string> removed_;
  std::map<std::string, std::string> later_;  // name → what is said instead; empty: the value
};

}  // namespace ddprun::launcher
