// SPDX-License-Identifier: Apache-2.0
// Values as a row of small bars. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::top {

inline constexpr int kNumLevels = 8;
// "▁" … "█"; what is out of range becomes the nearest one.
std::string level_sign(int level);

// At most `columns` bars: of more values each is the mean of some. From the least to the greatest
// one, which are `low` and `high`; all alike: in the middle. Empty of less than two values.
struct Sparkline {
  std::string bars;
  double low = 0, high = 0;
};
Sparkline sparkline(const std::vector<double>& values, std::size_t columns);

}  // namespace ddprun::top
