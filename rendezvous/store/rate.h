// SPDX-License-Identifier: Apache-2.0
// How much a store carries out in a turn and in a second. Pure: no I/O, clock or thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/clock.h"

namespace ddprun::store {

// A client's requests in a turn take about so much work (Outcome::work), then others have theirs:
// 0.1 to 0.4 ms.
inline constexpr std::size_t kTurnWork = 1024;

// A server takes about so much work from all its clients at once, then others on its io thread have
// their turn: 1.6 to 8 ms.
inline constexpr std::size_t kWakeUpWork = 16'384;

// A request that takes so much is a large one. Nobody else is served for 2 to 8 ms, or 250 ms for
// the largest one.
inline constexpr std::size_t kLargeWork = 16'384;

// All large ones of a server together may take so much in a second: 0.6 to 3 ms. So far fewer than
// one in 100 of the others' requests meets one.
inline constexpr std::uint64_t kLargeWorkPerSecond = 6'000;

// In the rendezvous, those of one node of a job. The node waits with all of its requests.
inline constexpr std::uint64_t kLargeWorkOfNodePerSecond = 60'000;

// How many may be done now, where so many may be in a second; what the last second did not use may
// come at once. More than that may be spent: then the next ones wait for longer. 0: any number.
class Rate {
 public:
  explicit Rate(std::uint64_t per_second)
      : per_second_(static_cast<double>(per_second)), credit_(per_second_) {}

  std::size_t allowed(Clock::time_point now) {
    if (per_second_ == 0) return std::numeric_limits<std::size_t>::max();
    const double passed = std::chrono::duration<double>(now - last_).count();
    credit_ = std::min(per_second_, credit_ + std::max(passed, 0.0) * per_second_);
    last_ = std::max(last_, now);
    return credit_ < 1 ? 0 : static_cast<std::size_t>(credit_);
  }
  void spend(std::size_t number, Clock::time_point now) {
    allowed(now);  // what was saved until now is no more than a second's
    credit_ -= static_cast<double>(number);
  }

  // The time until allowed() is more than 0; not negative.
  Clock::duration time_until_allowed(Clock::time_point now) {
    if (allowed(now) > 0) return Clock::duration::zero();
    return std::chrono::ceil<Clock::duration>(
        std::chrono::duration<double>((1 - credit_) / per_second_));
  }

 private:
  const double per_second_;
  double credit_;
  Clock::time_point last_;
};

}  // namespace ddprun::store
