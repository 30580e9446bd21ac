// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/topology.h"

#include <map>

#include "common/check.h"

namespace ddprun::host {

Topology::Topology(const std::vector<int>& node_rank_of, int rank)
    : rank_(rank), node_index_of_(node_rank_of.size()), local_index_of_(node_rank_of.size()) {
  DDPRUN_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < node_rank_of.size());
  std::map<int, std::vector<int>> members;
  for (std::size_t r = 0; r < node_rank_of.size(); ++r) {
    members[node_rank_of[r]].push_back(static_cast<int>(r));
  }
  std::size_t position = 0;
  for (auto& [node_rank, ranks] : members) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto member = static_cast<std::size_t>(ranks[i]);
      node_index_of_[member] = static_cast<int>(ranks_of_node_.size());
      local_index_of_[member] = static_cast<int>(i);
    }
    first_position_.push_back(position);
    position += ranks.size();
    const int count = static_cast<int>(ranks.size());
    num_carriers_ = num_carriers_ == 0 ? count : std::min(num_carriers_, count);
    max_ranks_per_node_ = std::max(max_ranks_per_node_, count);
    ranks_of_node_.push_back(std::move(ranks));
  }
}

std::size_t Topology::position_of(int rank) const {
  return first_position_[static_cast<std::size_t>(node_index_of(rank))] +
         static_cast<std::size_t>(local_index_of(rank));
}

Range Topology::positions_of_node(int node_index) const {
  const std::size_t first = first_position_[static_cast<std::size_t>(node_index)];
  return {first, first + ranks_of(node_index).size()};
}

}  // namespace ddprun::host
