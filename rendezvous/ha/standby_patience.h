// SPDX-License-Identifier: Apache-2.0
// How long a standby that was lost while it was in sync is kept out: each such loss costs a term,
// and one that comes and goes must not cost one after the other. Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/clock.h"

namespace ddprun::ha {

// One for all terms of a process: of a pair there is one standby.
class StandbyPatience {
 public:
  explicit StandbyPatience(std::chrono::milliseconds first = std::chrono::seconds(1),
                           std::chrono::milliseconds last = std::chrono::seconds(60),
                           std::chrono::milliseconds forgiven_after = std::chrono::seconds(60))
      : first_(first), last_(last), forgiven_after_(forgiven_after) {}

  void is_in_sync(Clock::time_point now) { in_sync_since_ = now; }
  // While it was in sync; for no fault of the leader's.
  void was_lost(Clock::time_point now) {
    if (now - in_sync_since_ >= forgiven_after_) pause_ = {};
    pause_ = std::clamp(pause_ * 2, first_, last_);
    until_ = now + pause_;
  }
  // How long it is to wait yet; nullopt: it may come.
  std::optional<std::chrono::milliseconds> wait(Clock::time_point now) const {
    if (now >= until_) return std::nullopt;
    return std::chrono::ceil<std::chrono::milliseconds>(until_ - now);
  }

 private:
  const std::chrono::milliseconds first_, last_, forgiven_after_;
  std::chrono::milliseconds pause_{0};
  Clock::time_point in_sync_since_{}, until_{};
};

}  // namespace ddprun::ha
