// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/stragglers.h"

#include <algorithm>

#include "common/duration.h"
#include "common/log.h"

namespace ddprun::membership {
namespace {

using std::chrono::microseconds;

constexpr std::size_t kMaxNamed = 16;
constexpr int kFactor = 2;  // × the median
constexpr microseconds kLeastExcess{1'000};

}  // namespace

std::vector<std::string> stragglers(std::vector<TimedRank> ranks) {
  std::vector<std::string> named;
  if (ranks.size() < 2) return named;
  std::sort(ranks.begin(), ranks.end(),
            [](const TimedRank& a, const TimedRank& b) { return a.time.own > b.time.own; });
  const microseconds median = ranks[ranks.size() / 2].time.own;  // of an even number: the lower
  for (const TimedRank& rank : ranks) {
    if (rank.time.own <= median * kFactor || rank.time.own < median + kLeastExcess) break;
    if (named.size() == kMaxNamed) break;
    named.push_back(concat("rank ", rank.time.global_rank, " (node ", rank.node_rank, ", ",
                           rank.host, "): ", milliseconds_text(rank.time.own),
                           " of its own per step, the median of ", ranks.size(), " ranks is ",
                           milliseconds_text(median)));
  }
  return named;
}

}  // namespace ddprun::membership
