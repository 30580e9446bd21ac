// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/step_time_report.h"

#include <algorithm>

namespace ddprun::agent {
namespace {

// By a quarter, and by more than what no straggler is made of.
bool differs(std::chrono::microseconds a, std::chrono::microseconds b) {
  constexpr std::chrono::microseconds kLeast{500};
  const auto change = std::max(a, b) - std::min(a, b);
  return change > kLeast && change * 4 > std::max(a, b);
}

}  // namespace

bool StepTimeReport::due(const std::vector<membership::RankStepTime>& times,
                         Clock::time_point now) {
  if (times.empty() || (said_at_ && now < *said_at_ + kInterval)) return false;
  bool changed = times.size() != said_.size();
  for (std::size_t i = 0; !changed && i < times.size(); ++i) {
    changed = times[i].global_rank != said_[i].global_rank || differs(times[i].own, said_[i].own);
  }
  if (!changed) return false;
  said_ = times;
  said_at_ = now;
  return true;
}

}  // namespace ddprun::agent
