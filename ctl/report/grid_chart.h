// SPDX-License-Identifier: Apache-2.0
// A TimeGrid as a chart: a line for each of few rows, else how all of them spread. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ctl/number_texts.h"
#include "ctl/report/charts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

// A value as a text; the script has the same by the name (page/report.js).
struct Unit {
  const char* name;
  std::string (*text)(double value);
};
inline constexpr Unit kNumber{"number", ctl::number_text}, kPercent{"percent", ctl::percent_text};
inline constexpr Unit kSeconds{"seconds", ctl::seconds_text}, kBytes{"bytes", ctl::bytes_text};
inline constexpr Unit kRate{"rate", ctl::rate_text};
extern const Unit kWatts, kCelsius;

// All rows in one column of a grid.
struct Spread {
  double least = 0, low = 0, middle = 0, high = 0, most = 0, sum = 0;  // low, high: p5, p95
  std::size_t worst = 0;                                               // the row with the most
};
std::vector<std::optional<Spread>> spreads_of(const TimeGrid& grid);

// Rows by number where all names are numbers, else by name.
std::vector<std::size_t> rows_in_order(const TimeGrid& grid);

// For a scale that few peaks, as of a first step, would dwarf: its end, above nearly all values.
// nullopt: all can be shown.
std::optional<double> top_without_peaks(std::vector<double> values);

struct GridChart {
  std::string id;
  Section section = Section::kSteps;
  std::string title;
  const char* one = "rank";       // "rank", "node", "GPU"
  bool names_are_numbers = true;  // "rank 3"; else a name says what it is
  std::size_t most_lines = 16;
  Unit unit = kNumber;
  bool names_worst = true;  // the one with the highest mean; false: means say little
  bool from_zero = true, without_peaks = false, is_half = false;
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

// Each row over time, in this order from top to bottom. Several rows become one line where there
// are many: the highest of them.
struct HeatMap {
  boost::json::object plot = {};
  std::size_t rows_of_line = 1;
};
HeatMap heat_map_of(const TimeGrid& grid, const std::vector<std::size_t>& order, const Unit& unit,
                    double seconds);

// A plot's value. Five digits are more than a chart shows.
double rounded(double value);

}  // namespace ddprun::report
