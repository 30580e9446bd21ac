// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace ddprun::top {

std::string level_sign(int level) {
  constexpr std::array<const char*, kNumLevels> kSigns = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kSigns[static_cast<std::size_t>(std::clamp(level, 0, kNumLevels - 1))];
}

Sparkline sparkline(const std::vector<double>& values, std::size_t columns) {
  Sparkline line;
  if (values.size() < 2 || columns == 0) return line;
  line.low = *std::min_element(values.begin(), values.end());
  line.high = *std::max_element(values.begin(), values.end());
  const std::size_t num_bars = std::min(columns, values.size());
  for (std::size_t bar = 0; bar < num_bars; ++bar) {
    const auto at = [&](std::size_t index) {
      return values.begin() + static_cast<std::ptrdiff_t>(index * values.size() / num_bars);
    };
    const auto first = at(bar), end = at(bar + 1);
    const double mean = std::accumulate(first, end, 0.0) / static_cast<double>(end - first);
    const double share = line.high > line.low ? (mean - line.low) / (line.high - line.low) : 0.4;
    line.bars += level_sign(static_cast<int>(std::lround(share * (kNumLevels - 1))));
  }
  return line;
}

}  // namespace ddprun::top
