// SPDX-License-Identifier: Apache-2.0
// Points in time and durations as people and JSON write them. Pure.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

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

// Parses "17", "2.5": 0 or more. nullopt: it is no such number.
std::optional<double> parse_decimal(std::string_view text);

// Parses "90", "90s", "15m", "2h", "1d", and Slurm's "MM:SS", "HH:MM:SS", "D-HH:MM:SS". The first
// part may be any number ("90:00"), the later ones are as on a clock. At most 1,000 days. nullopt:
// it is no duration.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

// These return seconds, rounded.
double seconds_in_tenths(std::chrono::nanoseconds time);
double seconds_in_thousandths(std::chrono::nanoseconds time);

// 12345 µs → "12.3 ms".
std::string milliseconds_text(std::chrono::microseconds time);

}  // namespace ddprun
