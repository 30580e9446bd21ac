// SPDX-License-Identifier: Apache-2.0
// Step times of ranks that report sums of their times, but not when they are in a collective
// (docs/observe.md). Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "agent/hang/rank_sample.h"
#include "common/progress_page.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {

class SeenStepTimes {
 public:
  static constexpr std::uint64_t kSteps = 32;

  explicit SeenStepTimes(RankNumbers ranks = {}) : numbers_(std::move(ranks)) {}

  // Returns the means of a rank's last steps, at least kSteps of them, as of the last look with so
  // many new steps. The rank's own part is the time outside waits in collectives. nullopt: there
  // are none yet, or it didn't communicate: then its own part is not known.
  std::optional<membership::RankStepTime> look(std::size_t local_rank, const StepSums& now) {
    if (local_rank >= ranks_.size()) ranks_.resize(local_rank + 1);
    Rank& rank = ranks_[local_rank];
    // A worker may write any values: the count may have gone back.
    if (now.num_steps < rank.from.num_steps) rank = {now, {}};
    if (now.num_steps - rank.from.num_steps < kSteps) return rank.time;
    const StepSums from = std::exchange(rank.from, now);
    const auto mean = [&](std::uint64_t StepSums::*sum) {
      const std::chrono::duration<double, std::nano> each(mean_between(from, now, sum));
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

 private:
  struct Rank {
    StepSums from;
    std::optional<membership::RankStepTime> time;
  };

  const RankNumbers numbers_;
  std::vector<Rank> ranks_;  // by local rank, up to the largest that was looked at
};

}  // namespace ddprun::agent
