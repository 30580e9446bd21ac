// SPDX-License-Identifier: Apache-2.0
// Values as people type them. Pure; nullopt: it isn't one.
#pragma once

#include <chrono>
#include <climits>
#include <optional>
#include <string_view>

namespace ddprun::launcher {

inline constexpr double kMaxSeconds = 86'400'000;  // 1000 days, the control protocol's limit

// "17", from 0 to `most`.
std::optional<int> parse_number(std::string_view text, int most = INT_MAX);

// "2.5": seconds, from 0 to kMaxSeconds.
std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text);

// "1", "true", "yes", "on", "t", "y" and their opposites, in any case of letters.
std::optional<bool> parse_switch(std::string_view text);

}  // namespace ddprun::launcher
