// SPDX-License-Identifier: Apache-2.0
// The median of a benchmark's times. Pure: no I/O, clock or thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ddprun::bench {

// The upper one of two in the middle. `values` isn't empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace ddprun::bench
