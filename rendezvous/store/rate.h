// SPDX-License-Identifier: Apache-2.0
// Limits the work that a store does in a turn and in a second. Pure: no I/O, clock or thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/clock.h"

namespace ddprun::store {

// The work (Outcome::work) after which a client's turn ends and other clients have theirs: 0.1 to
// 0.4 ms.
inline constexpr std::size_t kTurnWork = 1024;

// The work after which a server lets others on its I/O thread have their turn: 1.6 to 8 ms.
inline constexpr std::size_t kWakeUpWork = 16'384;

// A request of at least so much work is a large one. No other client is served during it: for 2 to
// 8 ms, or 250 ms with the largest one.
inline constexpr std::size_t kLargeWork = 16'384;

// The work of all large requests of a server in a second: 0.6 to 3 ms. So far fewer than 1 % of the
// other requests have to wait for one.
inline constexpr std::uint64_t kLargeWorkPerSecond = 6'000;

// The same in the rendezvous, for one node of a job. Beyond it, all requests of the node wait.
inline constexpr std::uint64_t kLargeWorkOfNodePerSecond = 60'000;

// Limits a number to `per_second`; 0: no limit. The unused part of the last second may be spent at
// once. If more is spent than allowed, the next wait is longer.
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
    allowed(now);  // caps the unused credit at one second's
    credit_ -= static_cast<double>(number);
  }

  // Returns the time until allowed() is above 0; not negative.
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
