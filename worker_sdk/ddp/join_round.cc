// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/join_round.h"

#include "common/error.h"
#include "common/log.h"

namespace ddprun {

JoinRound judge(std::span<const std::uint8_t> calls) {
  JoinRound round;
  int last_active = -1, last_out = 0, local = -1, averaged = -1;
  for (int rank = 0; rank < static_cast<int>(calls.size()); ++rank) {
    const auto call = static_cast<JoinCall>(calls[static_cast<std::size_t>(rank)]);
    if (call == JoinCall::kShadow || call == JoinCall::kRanOut) {
      if (round.first_out < 0) round.first_out = rank;
      if (call == JoinCall::kRanOut) last_out = rank;
      continue;
    }
    ++round.num_active;
    last_active = rank;
    (call == JoinCall::kAveraged ? averaged : local) = rank;
  }
  if (local >= 0 && averaged >= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("rank ", averaged, " averages the gradients of this forward, rank ", local,
                       " does not: no_sync must cover the same forwards on all ranks"));
  }
  round.averages = averaged >= 0;
  round.source_rank = round.num_active > 0 ? last_active : last_out;
  return round;
}

}  // namespace ddprun
