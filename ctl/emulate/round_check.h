// SPDX-License-Identifier: Apache-2.0
// The invariants of rounds, checked on what the agents were told. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/messages.h"

namespace ddprun::ctl {

class RoundCheck {
 public:
  RoundCheck(int num_nodes, int num_workers_per_node)
      : num_nodes_(num_nodes), num_workers_(num_workers_per_node) {}

  // An agent was told to start a round, while `num_live` agents had workers of another one.
  // Returns what is wrong: two live rounds, a round that goes back, a rank given twice or out of
  // range, sizes or a master that differ from the round's others, a wrong restart count.
  std::optional<std::string> started(const membership::StartRound& start, int num_live_elsewhere);

  std::uint64_t round() const { return round_; }
  bool complete() const { return num_started_ == num_nodes_; }

 private:
  const int num_nodes_, num_workers_;
  std::uint64_t round_ = 0;
  int num_started_ = 0;
  std::vector<bool> taken_;  // by node rank
  std::string master_addr_;
  std::uint16_t master_port_ = 0;
};

}  // namespace ddprun::ctl
