// SPDX-License-Identifier: Apache-2.0
// What a job's first round will be, as far as that is known before its nodes have met. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "rendezvous/membership/messages.h"

namespace ddprun::launcher {

// One node of the round, by node rank.
struct NodeForecast {
  int num_workers = 1;
  std::string addr;  // as its peers reach it; empty: not known
};

struct RoundKnowledge {
  std::vector<NodeForecast> nodes;  // not empty
  std::string role;                 // of all nodes
  bool ranks = true;                // each node's rank is known
  bool num_nodes = true;            // so many nodes will meet
  bool num_workers = true;          // of each node
  bool is_static = false;           // MASTER_ADDR and MASTER_PORT are `endpoint`
  bool is_proxied = false;          // MASTER_ADDR is this node's proxy
  Endpoint endpoint;
  std::uint16_t store_port = 0;  // else MASTER_PORT; 0: any free one
};

// By node rank. What isn't known is any number, or a text in <…> that says what it will be.
std::vector<membership::StartRound> forecast_rounds(const RoundKnowledge& knowledge);

// `round` as it might be, too: all that differs is decided later, by what `decided` says. Empty:
// the text in its place says so itself.
struct OtherRound {
  membership::StartRound round;
  std::string decided;
};
std::vector<OtherRound> other_rounds(const RoundKnowledge& knowledge,
                                     const membership::StartRound& round);

}  // namespace ddprun::launcher
