// SPDX-License-Identifier: Apache-2.0
// Points in time as people and JSON write them. Pure.
#pragma once

#include <chrono>
#include <ctime>
#include <string>

#include "common/clock.h"

namespace ddprun {

using WallTime = std::chrono::system_clock::time_point;

// One moment on both clocks.
struct Moment {
  Clock::time_point at;
  WallTime wall;
  static Moment now() { return {Clock::now(), std::chrono::system_clock::now()}; }
};

// Returns the time in UTC, as strftime() writes it; empty: its year is too large.
std::string utc_text(std::time_t at, const char* format);
// Returns "03:15:07", local time.
std::string local_time_text(std::time_t at);

// Returns "2026-11-22T03:15:07Z".
std::string utc_text(WallTime at);
// Returns "2026-11-22T03:15:07.123Z".
std::string utc_text_ms(WallTime at);

}  // namespace ddprun
