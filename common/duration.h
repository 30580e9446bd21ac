// SPDX-License-Identifier: Apache-2.0
// Durations as people type and read them. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

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
