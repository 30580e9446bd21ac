// SPDX-License-Identifier: Apache-2.0
// What one worker of a round will be given: variables, command, files. Made by what makes it for a
// worker that starts (agent/worker_environment.h, agent/worker_arguments.h, agent/output/); what is
// known before the start is what comes out the same however the rest is decided. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/output/output_options.h"
#include "agent/worker_arguments.h"
#include "agent/worker_environment.h"
#include "launcher/dry_run/round_forecast.h"

namespace ddprun::launcher {

// What is the same for all workers of a node.
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
  // Of the variables that ddprun sets, by name: what is otherwise than WorkerForecaster::common().
  std::vector<ForecastVariable> environment;
  std::vector<std::string> without;  // names of those that it hasn't
  std::vector<std::string> files;    // log files
};

class WorkerForecaster {
 public:
  // `round`: of a node that stands for all: which variables are decided later is the same for nodes
  // that differ only in their place and number of workers.
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
