// SPDX-License-Identifier: Apache-2.0
// The limits of what messages have in their fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/json.h"

namespace ddprun::membership {

using ddprun::clean_text, ddprun::clean_utf8, ddprun::counter_value, ddprun::JsonFields,
    ddprun::kMaxShownBytes, ddprun::line_text, ddprun::time_value;

inline constexpr std::size_t kMaxLineBytes = 1024;  // of a worker's output, of a hang's evidence
inline constexpr std::size_t kMaxNameBytes = 256;   // of a host
inline constexpr std::size_t kMaxLabelBytes = 1024;

inline constexpr std::int64_t kMaxMicroseconds = std::int64_t{1} << 53;  // of a clock
inline constexpr int kMaxInt = std::numeric_limits<int>::max();          // for small()

}  // namespace ddprun::membership
