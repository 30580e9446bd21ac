// SPDX-License-Identifier: Apache-2.0
// Draws a TimeGrid as a chart: a line for each row if there are few, else the spread of all rows.
// Pure.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ctl/number_texts.h"
#include "ctl/report/charts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

// Formats a value. The script (page/report.js) knows the same units by name.
struct Unit {
  const char* name;
  std::string (*text)(double value);
};
inline constexpr Unit kNumber{"number", ctl::number_text}, kPercent{"percent", ctl::percent_text};
inline constexpr Unit kSeconds{"seconds", ctl::seconds_text}, kBytes{"bytes", ctl::bytes_text};
inline constexpr Unit kRate{"rate", ctl::rate_text};
extern const Unit kWatts, kCelsius;

// Statistics of all rows in one column of a grid.
struct Spread {
  double least = 0, low = 0, middle = 0, high = 0, most = 0, sum = 0;  // low, high: p5, p95
  std::size_t worst = 0;                                               // the row with the most
};
std::vector<std::optional<Spread>> spreads_of(const TimeGrid& grid);

// Sorts rows by number if all names are numbers, else by name.
std::vector<std::size_t> rows_in_order(const TimeGrid& grid);

// Returns the end of a scale that shows nearly all values, and cuts off a few peaks, such as a
// first step's. nullopt: all values fit.
std::optional<double> top_without_peaks(std::vector<double> values);

struct GridChart {
  std::string id;
  Section section = Section::kSteps;
  std::string title;
  const char* one = "rank";       // a row's kind: "rank", "node", "GPU"
  bool names_are_numbers = true;  // a row is shown as "rank 3"; false: by its name alone
  std::size_t most_lines = 16;
  Unit unit = kNumber;
  bool names_worst = true;  // names the row with the highest mean; false: means say little
  bool from_zero = true, without_peaks = false, is_half = false;
  std::optional<double> top;
  double seconds = 0;  // the job's length
  std::vector<double> marks;
};

Chart chart_of(const TimeGrid& grid, const GridChart& wanted);

// Draws the sum of all rows as one line. Ignores `wanted.most_lines`.
Chart sum_chart_of(const TimeGrid& grid, const GridChart& wanted);

// Draws the sums of two grids in one chart.
Chart two_sums_chart_of(const TimeGrid& first, const char* first_name, const TimeGrid& second,
                        const char* second_name, const GridChart& wanted);

// A heat map: one line for each row, from top to bottom in this order. With many rows, several
// share a line, which shows the highest of their values.
struct HeatMap {
  boost::json::object plot = {};
  std::size_t rows_of_line = 1;
};
HeatMap heat_map_of(const TimeGrid& grid, const std::vector<std::size_t>& order, const Unit& unit,
                    double seconds);

// Rounds a value for a plot to five digits, which are more than a chart shows.
double rounded(double value);

}  // namespace ddprun::report
