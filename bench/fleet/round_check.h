// SPDX-License-Identifier: Apache-2.0
// The invariants of rounds, checked on what the nodes were told and on whose workers live. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/messages/messages.h"

namespace ddprun::bench {

class RoundCheck {
 public:
  struct Limits {
    int min_nodes = 1, max_nodes = 1;
    int num_workers = 1;  // of each node
    bool in_order =
        true;  // each round starts on all its nodes before the next one: nothing is lost
  };
  explicit RoundCheck(const Limits& limits) : limits_(limits) {}

  // A node was told to start a round, and did. Returns what is wrong: two live rounds, a round that
  // goes back, a rank given twice or out of range, a wrong restart count. Sizes and the master may
  // also differ from the round's others.
  std::optional<std::string> started(const membership::StartRound& start);
  // No worker of that round lives on a node where it was started.
  void emptied(std::uint64_t round);

  std::uint64_t round() const { return round_; }
  int num_nodes() const { return num_nodes_; }  // of round()
  bool complete() const { return num_started_ == num_nodes_; }
  int num_live() const { return num_live_; }  // nodes with workers of any round

 private:
  const Limits limits_;
  std::uint64_t round_ = 0;
  int num_nodes_ = 0, num_started_ = 0;
  std::vector<bool> taken_;  // by node rank
  std::string master_addr_;
  std::uint16_t master_port_ = 0;
  std::map<std::uint64_t, int> live_;  // round → nodes with its workers
  int num_live_ = 0;
};

}  // namespace ddprun::bench
