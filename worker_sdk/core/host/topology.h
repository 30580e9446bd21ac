// SPDX-License-Identifier: Apache-2.0
// Which rank lies on which node, and how work is cut. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ddprun::host {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// Part `index` of `count` elements cut into `parts`, on boundaries of `granule` elements; the last
// parts may be shorter or empty. The same on every rank.
inline Range slice_of(std::size_t count, std::size_t index, std::size_t parts,
                      std::size_t granule = 1) {
  const std::size_t granules = (count + granule - 1) / granule;
  const std::size_t share = (granules + parts - 1) / parts * granule;
  return {std::min(count, index * share), std::min(count, (index + 1) * share)};
}

// Nodes are numbered 0, 1, … in the order of their node ranks ("node index"); a node's ranks are
// its members in rank order ("local index"). Constant after construction.
class Topology {
 public:
  // `node_rank_of[r]` is the node rank of rank r; `rank` is the caller.
  Topology(const std::vector<int>& node_rank_of, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(node_index_of_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_of_node_.size()); }
  int node_index() const { return node_index_of_[static_cast<std::size_t>(rank_)]; }
  int local_index() const { return local_index_of_[static_cast<std::size_t>(rank_)]; }
  int num_local() const { return static_cast<int>(local_ranks().size()); }
  const std::vector<int>& local_ranks() const { return ranks_of(node_index()); }
  const std::vector<int>& ranks_of(int node_index) const {
    return ranks_of_node_[static_cast<std::size_t>(node_index)];
  }
  int node_index_of(int rank) const { return node_index_of_[static_cast<std::size_t>(rank)]; }
  int local_index_of(int rank) const { return local_index_of_[static_cast<std::size_t>(rank)]; }
  bool same_node(int rank) const { return node_index_of(rank) == node_index(); }

  // The first ranks of each node carry the data between nodes, each its own share: as many per
  // node as the smallest node has ranks.
  int num_carriers() const { return num_carriers_; }
  bool is_carrier() const { return local_index() < num_carriers_; }
  int max_ranks_per_node() const { return max_ranks_per_node_; }

  // Ranks in node order: position of a rank, and the positions that a node's ranks fill.
  std::size_t position_of(int rank) const;
  Range positions_of_node(int node_index) const;

 private:
  int rank_;
  int num_carriers_ = 0;
  int max_ranks_per_node_ = 0;
  std::vector<int> node_index_of_;
  std::vector<int> local_index_of_;
  std::vector<std::vector<int>> ranks_of_node_;
  std::vector<std::size_t> first_position_;
};

}  // namespace ddprun::host
