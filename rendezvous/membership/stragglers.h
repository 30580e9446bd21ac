// SPDX-License-Identifier: Apache-2.0
// Ranks whose own part of a step takes much longer than the others'. Pure.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/membership/rank_report.h"

namespace ddprun::membership {

// "rank 3 (node 1, gpu02): 41.0 ms of its own per step, the median of 8 ranks is 12.0 ms"; slowest
// first, at most 16.
struct TimedRank {
  int node_rank = 0;
  std::string host;
  RankStepTime time;
};
std::vector<std::string> stragglers(std::vector<TimedRank> ranks);

}  // namespace ddprun::membership
