// SPDX-License-Identifier: Apache-2.0
// How much status pages may cost (docs/status-page.md). Plain data.
#pragma once

#include <chrono>
#include <cstddef>

#include "rendezvous/daemon/tails.h"

namespace ddprun::rendezvous {

struct WatcherLimits {
  std::size_t num = 64;  // who watch at once
  std::size_t state_bytes = std::size_t{3} << 20;
  std::chrono::milliseconds interval{1'000};      // from one state to the next, at least
  std::chrono::milliseconds status_after{5'000};  // without a frame
  std::chrono::milliseconds ping_interval{20'000};
  std::chrono::milliseconds silence{60'000};  // no ping was answered: it is closed
  TailLimits tails;
};

}  // namespace ddprun::rendezvous
