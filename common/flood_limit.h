// SPDX-License-Identifier: Apache-2.0
// Limits lines in a log about peers that may be hostile, and workers' events: some at once, then so
// many a second.
// Pure.
#pragma once

#include <algorithm>
#include <chrono>

#include "common/clock.h"

namespace ddprun {

class FloodLimit {
 public:
  FloodLimit(double at_once, double per_second)
      : at_once_(at_once), per_second_(per_second), left_(at_once) {}

  // Whether one more is taken at `now`, which never goes back.
  bool admit(Clock::time_point now) {
    const std::chrono::duration<double> passed = now - last_;
    last_ = now;
    left_ = std::min(at_once_, left_ + passed.count() * per_second_);
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

 private:
  const double at_once_, per_second_;
  double left_;  // a token bucket
  Clock::time_point last_{};
};

}  // namespace ddprun
