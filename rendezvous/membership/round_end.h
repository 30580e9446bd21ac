// SPDX-License-Identifier: Apache-2.0
// What kind of event ended a round: few, so that they can be counted (docs/metrics.md). Pure.
#pragma once

#include <array>
#include <cstddef>

namespace ddprun::membership {

// The journal has them by number: new ones go to the end.
enum class RoundEnd {
  kOther,         // a rendezvous that knew no kinds has ended it
  kSuccess,       // all workers were done
  kWorkerFailed,  // one of them did, or left unasked
  kHang,
  kNodeLost,
  kNodeLeft,       // it was told to, or a worker asked for it to be left out
  kNodeJoined,     // --on-join=restart
  kPreempted,      // a node was warned that it is taken away
  kTimeLimit,      // the job's time is over
  kWorkerRequest,  // a worker has stopped the job
  kTimeout,        // not all workers started, or ended, in time
};
inline constexpr RoundEnd last_of(RoundEnd) { return RoundEnd::kTimeout; }

inline constexpr std::array kRoundEndNames = {
    "other",       "success",   "worker_failed", "hang",           "node_lost", "node_left",
    "node_joined", "preempted", "time_limit",    "worker_request", "timeout"};
inline constexpr std::size_t kNumRoundEnds = kRoundEndNames.size();
static_assert(kNumRoundEnds == static_cast<std::size_t>(RoundEnd::kTimeout) + 1);

}  // namespace ddprun::membership
