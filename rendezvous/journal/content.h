// SPDX-License-Identifier: Apache-2.0
// What an earlier process left in a journal. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"

namespace ddprun::journal {

struct Content {
  Rows rows;
  // To be added to the points in time in them: 0 where the monotonic clock is the same one.
  Clock::duration clock_shift{};
  // What could not be read, one line each; empty: all was whole.
  std::vector<std::string> losses;
};

}  // namespace ddprun::journal
