// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/seen_step_times.h"

#include <algorithm>
#include <chrono>

namespace ddprun::agent {

std::optional<membership::RankStepTime> SeenStepTimes::look(std::size_t local_rank,
                                                            const StepSums& now) {
  if (local_rank >= ranks_.size()) ranks_.resize(local_rank + 1);
  Rank& rank = ranks_[local_rank];
  // A worker may write what it likes: the count, and sums below, may have gone back.
  if (now.num_steps < rank.from.num_steps) rank = {now, {}};
  if (now.num_steps - rank.from.num_steps < kSteps) return rank.time;
  const StepSums from = std::exchange(rank.from, now);
  const auto mean = [&](std::uint64_t StepSums::*sum) {
    const std::uint64_t all = now.*sum > from.*sum ? now.*sum - from.*sum : 0;
    const std::chrono::nanoseconds each(
        static_cast<std::int64_t>(all / (now.num_steps - from.num_steps)));
    return std::chrono::duration_cast<std::chrono::microseconds>(each);
  };
  rank.time.reset();
  if (mean(&StepSums::communication).count() > 0) {
    const auto step = mean(&StepSums::step);
    rank.time = membership::RankStepTime{numbers_.of(static_cast<int>(local_rank)), step,
                                         step - std::min(step, mean(&StepSums::exposed))};
  }
  return rank.time;
}

}  // namespace ddprun::agent
