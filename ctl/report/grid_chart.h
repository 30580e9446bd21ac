// SPDX-License-Identifier: Apache-2.0
// A TimeGrid as a chart: a line for each of few rows, else how all of them spread. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ctl/report/chart.h"
#include "ctl/report/line_plot.h"
#include "ctl/report/time_grid.h"

namespace ddprun::report {

inline constexpr double kWideChart = 900, kHalfChart = 438;

// All rows in one column of a grid.
struct Spread {
  double least = 0, low = 0, middle = 0, high = 0, most = 0, sum = 0;  // low, high: p5, p95
  std::size_t worst = 0;                                               // the row with the most
};
std::vector<std::optional<Spread>> spreads_of(const TimeGrid& grid);

// A value of each column, as points in the middle of it.
Runs runs_of(const TimeGrid& grid, const std::function<std::optional<double>(std::size_t)>& value);

// Rows by number where all names are numbers, else by name.
std::vector<std::size_t> rows_in_order(const TimeGrid& grid);

struct GridChart {
  std::string id;
  Section section = Section::kSteps;
  std::string title;
  const char* one = "rank";       // "rank", "node", "GPU"
  bool names_are_numbers = true;  // "rank 3"; else a name says what it is
  std::size_t most_lines = 16;
  TextOf text = number_text;
  bool names_worst = true;  // the one with the highest mean; false: means say little
  bool is_bytes = false, from_zero = true, without_peaks = false, is_half = false;
  std::optional<double> top;
  double seconds = 0;  // of the job
  std::vector<double> marks;
};

Chart chart_of(const TimeGrid& grid, const GridChart& wanted);

// The sum of all rows, one line. `wanted.most_lines` doesn't count.
Chart sum_chart_of(const TimeGrid& grid, const GridChart& wanted);

// Two grids' sums in one chart.
Chart two_sums_chart_of(const TimeGrid& first, const char* first_name, const TimeGrid& second,
                        const char* second_name, const GridChart& wanted);

}  // namespace ddprun::report
