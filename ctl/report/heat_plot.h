// SPDX-License-Identifier: Apache-2.0
// A map of ranks over time: the darker, the more. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ctl/report/drawing.h"
#include "ctl/report/numbers.h"
#include "ctl/report/time_grid.h"

namespace ddprun::report {

struct HeatScale {
  double low = 0, high = 1;  // below and above it is the first and the last colour
  std::size_t level_of(double value) const;
};

struct HeatMap {
  Drawing drawing;
  HeatScale scale;
  std::size_t rows_of_line = 1;  // so many ranks are one line of it: it shows the highest
};

// `order`: rows of `grid`, from top to bottom.
HeatMap draw_heat_map(const TimeGrid& grid, const std::vector<std::size_t>& order, double width,
                      double seconds, TextOf text);

}  // namespace ddprun::report
