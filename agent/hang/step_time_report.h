// SPDX-License-Identifier: Apache-2.0
// When this node's step times are worth a message: a rank's own time changed by a quarter, and the
// last message was long enough ago. Pure.
#pragma once

#include <optional>
#include <vector>

#include "common/clock.h"
#include "rendezvous/membership/rank_report.h"

namespace ddprun::agent {

class StepTimeReport {
 public:
  static constexpr std::chrono::seconds kInterval{10};

  // `times`: of the ranks that have any. True: say them; the next ones not before kInterval.
  bool due(const std::vector<membership::RankStepTime>& times, Clock::time_point now);

 private:
  std::vector<membership::RankStepTime> said_;
  std::optional<Clock::time_point> said_at_;
};

}  // namespace ddprun::agent
