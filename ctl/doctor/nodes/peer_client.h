// SPDX-License-Identifier: Apache-2.0
// Measures the way from this node to another one's PeerServer. Every call keeps its deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "ctl/doctor/nodes/node_sheet.h"

namespace ddprun::doctor {

struct Peer {
  int node_rank = 0;
  Endpoint endpoint;  // numeric host
};

// Connects to all of them, several at a time, each for `patience` at most: who answers, and what
// its clock says (four stamps). In the order of `peers`; after the deadline the rest "not tried".
std::vector<Greeting> greet_all(const std::vector<Peer>& peers, const std::string& token,
                                std::chrono::milliseconds patience, Deadline deadline);

struct PairLimits {
  std::uint64_t num_bytes = 64 << 20;            // for each direction
  std::chrono::nanoseconds time{1'000'000'000};  // likewise
  int mtu = 0;                                   // of this node's interface; 0: not known
};

// Round trips of one byte, the bandwidth of both directions one after the other, and whether frames
// as large as the MTU arrive that may not be broken up. What fails is in the answer's `failure`.
PairMeasure measure_pair(int own_rank, const Peer& peer, const std::string& token,
                         const PairLimits& limits, Deadline deadline);

}  // namespace ddprun::doctor
