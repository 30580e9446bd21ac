// SPDX-License-Identifier: Apache-2.0
// What an earlier process left in a journal. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"

namespace ddprun::journal {

// Whose monotonic clock the points in time in the rows are of, and what it showed at the last
// commit.
struct ClockStamp {
  std::string boot;  // common/boot_id.h
  std::int64_t monotonic_ns = 0;
};

struct Content {
  Rows rows;
  // To be added to the points in time in them: 0 where the monotonic clock is the same one.
  Clock::duration clock_shift{};
  // What could not be read, one line each; empty: all was whole.
  std::vector<std::string> losses;
  // The machine has ended since the last commits, which may be missing: they were not synced.
  bool may_lack_end = false;
};

}  // namespace ddprun::journal
