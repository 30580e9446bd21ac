// SPDX-License-Identifier: Apache-2.0
// The arguments and the environment of one worker: torchrun's variables, and DDPRUN_*. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {

// The command that the workers of a node execute.
struct WorkerCommand {
  std::vector<std::string> argv;     // of every worker; argv[0] is the file to execute
  bool dollars_are_doubled = false;  // "$$" in an argument means "$"
};

// `command` with "${local_rank}" and "$local_rank" replaced in its arguments, not in argv[0].
std::vector<std::string> worker_arguments(const WorkerCommand& command, int local_rank);

// Values that are the same for all workers of this node and all rounds.
struct WorkerEnvironmentOptions {
  Environment inherited;  // the agent's own
  std::string run_id;
  std::string role = "default";
  std::string signals_to_handle;  // that the agent's program passes on
  int max_restarts = 0;
  int num_workers = 1;  // on this node
  // --virtual-local-rank: the one GPU of each worker, by local rank, as CUDA_VISIBLE_DEVICES names
  // it; every worker's LOCAL_RANK is 0. Empty: off.
  std::vector<std::string> devices = {};
  bool recovers_in_place = false;       // --recovery=inplace
  bool observes = false;                // --observe
  std::optional<int> terminal_columns;  // set where the agent's output is a terminal
  // In rounds of several nodes: defaults for a node with this address. Empty: none.
  std::function<Environment(const std::string& node_addr)> network = {};
};

// Paths of one worker. An empty one is not set, and not inherited either.
struct WorkerPaths {
  std::string error_file;
  std::string agent_socket;
  std::string timer_file = {};  // an empty one is inherited
  std::string observer = {};    // its folder, which comes first in PYTHONPATH
};

// "NAME=value" of the worker `local_rank` in `round`, complete.
std::vector<std::string> worker_environment(const WorkerEnvironmentOptions& options,
                                            const membership::StartRound& round, int local_rank,
                                            const WorkerPaths& paths);

// The environment of a worker that is started before its node has a place in a round: as above,
// without the variables of a place. DDPRUN_ROUND is 0, and the rest comes over the agent's socket.
std::vector<std::string> parked_environment(const WorkerEnvironmentOptions& options, int local_rank,
                                            const std::string& agent_socket,
                                            const std::string& observer = {});

// All variables of a place, for a worker that goes on in place in `round` (docs/inplace.md).
// `index`: among the node's workers that are left; `local_rank`: as it was started.
std::vector<std::string> place_variables(const WorkerEnvironmentOptions& options,
                                         const membership::StartRound& round, int index,
                                         int num_left, int local_rank);

// Whole "NAME=value"s that are in `now` but not in `before`.
std::vector<std::string> environment_news(const std::vector<std::string>& before,
                                          const std::vector<std::string>& now);

}  // namespace ddprun::agent
