// SPDX-License-Identifier: Apache-2.0
// This worker's place in the job, as the launcher has set it. It is read once from the environment.
// Pure: a function gives the environment.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/endpoint.h"

namespace ddprun {

// The value of an environment variable, or nullptr. Same shape as getenv(3).
using EnvLookup = std::function<const char*(const char* name)>;

// Returns the words of DDPRUN_DEBUG, known or not, for code that has no WorkerEnv.
std::vector<std::string> debug_words(const EnvLookup& lookup);

struct WorkerEnv {
  int rank = 0;              // global rank, 0 … world_size − 1
  int local_rank = 0;        // among this node's workers
  int device = 0;            // the index of its GPU among those that it sees; LOCAL_RANK
  int world_size = 1;        // workers in the job
  int local_world_size = 1;  // workers on this node
  int node_rank = 0;         // "inside a node" means: the same node_rank
  int num_nodes = 1;
  int restart_count = 0;  // how often the job was restarted; 0 where the launcher doesn't say
  int round = 1;          // DDPRUN_ROUND, else restart_count + 1; prefixes every key of the SDK
  Endpoint master;        // the round's store
  std::string node_addr;  // this node's address for its peers; empty where the launcher doesn't say
  std::string run_id;     // "none" where the launcher doesn't say
  std::string agent_socket{};      // of the agent on this node; empty: there is none
  std::string error_file{};        // TORCHELASTIC_ERROR_FILE; empty: there is none
  int num_recorded = 2'000;        // operations that the flight recorder holds; 0: it is off
  bool recovers_in_place = false;  // --recovery=inplace (docs/inplace.md)
  bool debug_collectives = false;  // DDPRUN_DEBUG=collectives
  bool debug_times = false;        // DDPRUN_DEBUG=times
  std::string recorder_dir{};      // the flight recorder's directory; empty: beside the error file

  // Reads the variables that ddprun and torchrun set. Throws Error(kInvalidArgument) that lists
  // every missing, malformed and contradictory variable at once.
  static WorkerEnv from_environment(const EnvLookup& lookup);
};

}  // namespace ddprun
