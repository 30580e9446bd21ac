// SPDX-License-Identifier: Apache-2.0
// Step times of ranks that tell sums of their times, but not when they are in a collective
// (docs/observe.md). Pure.
#pragma once

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

  // The means of a rank's last steps, kSteps at least, as of the last look that had so many new
  // ones. Its own part is what was no wait in a collective. nullopt: none yet, or it didn't
  // communicate: its own part is not known then.
  std::optional<membership::RankStepTime> look(std::size_t local_rank, const StepSums& now);

 private:
  struct Rank {
    StepSums from;
    std::optional<membership::RankStepTime> time;
  };

  const RankNumbers numbers_;
  std::vector<Rank> ranks_;  // by local rank, as far as they were looked at
};

}  // namespace ddprun::agent
