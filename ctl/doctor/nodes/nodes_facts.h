// SPDX-License-Identifier: Apache-2.0
// All that rank 0 was told of the job's nodes: what the checks of several nodes judge.
#pragma once

#include <string>
#include <vector>

#include "ctl/doctor/nodes/node_sheet.h"

namespace ddprun::doctor {

// A backend's all-reduce, of a rank.
struct RankCollective {
  int global_rank = 0, node_rank = 0;
  std::string backend;  // "host", "nccl"
  double num_bytes = 0, seconds = 0;
  std::string failure;
};

struct NodesFacts {
  int num_nodes = 0;
  // Each by node rank; those that didn't answer in time are missing.
  std::vector<NodeSheet> sheets;
  std::vector<NodeReach> reaches;
  std::vector<PairMeasure> pairs;
  int world_size = 0;
  std::vector<RankCollective> collectives;
  std::string no_collectives;      // why none was tried
  std::vector<std::string> notes;  // what could not be looked at, and why

  const NodeSheet* sheet(int node_rank) const;
  // Its host's name; with its rank where others have the same, "node 3" where it isn't known.
  std::string name(int node_rank) const;
  // All of them, put together: "gpu[01-30]".
  std::string names(const std::vector<int>& node_ranks) const;
  // Why `from` didn't reach `to`; empty: it did, or nothing is known of it.
  std::string failure(int from, int to) const;
};

}  // namespace ddprun::doctor
