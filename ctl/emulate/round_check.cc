// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/round_check.h"

#include "common/log.h"

namespace ddprun::ctl {

std::optional<std::string> RoundCheck::started(const membership::StartRound& start,
                                               int num_live_elsewhere) {
  const auto wrong = [&](const auto&... what) {
    return std::optional<std::string>(concat("round ", start.round, ": ", what...));
  };
  if (start.round < round_) return wrong("it started after round ", round_);
  if (start.round > round_) {
    if (round_ > 0 && !complete()) return wrong("round ", round_, " had not started everywhere");
    round_ = start.round;
    num_started_ = 0;
    taken_.assign(static_cast<std::size_t>(num_nodes_), false);
    master_addr_ = start.master_node_addr;
    master_port_ = start.master_port;
  }
  if (num_live_elsewhere > 0) {
    return wrong("it starts while workers of another round live on ", num_live_elsewhere, " nodes");
  }
  if (start.node_rank < 0 || start.node_rank >= num_nodes_) {
    return wrong("node rank ", start.node_rank, " of ", num_nodes_);
  }
  const auto rank = static_cast<std::size_t>(start.node_rank);
  if (taken_[rank]) return wrong("node rank ", rank, " was given twice");
  taken_[rank] = true;
  if (start.num_nodes != num_nodes_ || start.world_size != num_nodes_ * num_workers_) {
    return wrong("it has ", start.num_nodes, " nodes and ", start.world_size, " workers");
  }
  if (start.first_global_rank != start.node_rank * num_workers_) {
    return wrong("node rank ", rank, " begins with rank ", start.first_global_rank);
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

}  // namespace ddprun::ctl
