// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/round_check.h"

#include "common/text.h"

namespace ddprun::bench {

std::optional<std::string> RoundCheck::started(const membership::StartRound& start) {
  const auto wrong = [&](const auto&... what) {
    return std::optional<std::string>(concat("round ", start.round, ": ", what...));
  };
  const int num_elsewhere = num_live_ - live_[start.round];
  ++live_[start.round];
  ++num_live_;
  if (start.round < round_) return wrong("it started after round ", round_);
  if (start.round > round_) {
    if (limits_.in_order && round_ > 0 && !complete()) {
      return wrong("round ", round_, " had not started everywhere");
    }
    round_ = start.round;
    num_nodes_ = start.num_nodes;
    num_started_ = 0;
    if (num_nodes_ < limits_.min_nodes || num_nodes_ > limits_.max_nodes) {
      return wrong("it has ", num_nodes_, " nodes");
    }
    taken_.assign(static_cast<std::size_t>(num_nodes_), false);
    master_addr_ = start.master_node_addr;
    master_port_ = start.master_port;
  }
  if (num_elsewhere > 0) {
    return wrong("it starts while workers of another round live on ", num_elsewhere, " nodes");
  }
  if (start.node_rank < 0 || start.node_rank >= num_nodes_) {
    return wrong("node rank ", start.node_rank, " of ", num_nodes_);
  }
  const auto rank = static_cast<std::size_t>(start.node_rank);
  if (taken_[rank]) return wrong("node rank ", rank, " was given twice");
  taken_[rank] = true;
  if (start.num_nodes != num_nodes_ || start.world_size != num_nodes_ * limits_.num_workers) {
    return wrong("it has ", start.num_nodes, " nodes and ", start.world_size, " workers");
  }
  if (start.first_global_rank != start.node_rank * limits_.num_workers) {
    return wrong("node rank ", start.node_rank, " begins with rank ", start.first_global_rank);
  }
  if (start.master_node_addr != master_addr_ || start.master_port != master_port_) {
    return wrong("two masters: ", master_addr_, " and ", start.master_node_addr);
  }
  if (start.restart_count != static_cast<int>(start.round) - 1) {
    return wrong("restart count ", start.restart_count);
  }
  ++num_started_;
  return std::nullopt;
}

void RoundCheck::emptied(std::uint64_t round) {
  const auto found = live_.find(round);
  if (found == live_.end()) return;
  --num_live_;
  if (--found->second == 0) live_.erase(found);
}

}  // namespace ddprun::bench
