// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/grid_chart.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::report {

namespace json = boost::json;
using ctl::clock_text, ctl::count_text, ctl::seconds_text;

namespace {

constexpr std::size_t kMostTableRows = 60, kMostHeatLines = 128, kMostHeatSteps = 160;
constexpr std::size_t kSeriesColours = 8;  // the page has so many; further lines are dashed

json::value value_of(std::optional<double> value) {
  return value ? json::value(rounded(*value)) : json::value(nullptr);
}

// Returns `value(column)` for each column; null: not known.
template <typename Value>
json::array values_of(const TimeGrid& grid, const Value& value) {
  json::array values;
  values.reserve(grid.num_columns());
  for (std::size_t column = 0; column < grid.num_columns(); ++column) {
    values.push_back(value_of(value(column)));
  }
  return values;
}

json::object line_of(json::array values, bool dashed = false) {
  return {{"y", std::move(values)}, {"dashed", dashed}};
}

// Makes a plot without its lines. A column's value is drawn at the middle of the column.
json::object plot_for(const TimeGrid& grid, const GridChart& wanted, std::optional<double> top) {
  json::array marks;
  for (const double mark : wanted.marks) marks.push_back(rounded(mark));
  json::object plot{
      {"kind", "lines"},
      {"unit", wanted.unit.name},
      {"x_high", rounded(wanted.seconds)},
      {"from_zero", wanted.from_zero},
      {"marks", std::move(marks)},
      {"x", values_of(grid,
                      [&](std::size_t column) {
                        return std::optional((static_cast<double>(column) + 0.5) * grid.width());
                      })},
      {"lines", json::array()}};
  if (top) plot["top"] = *top;
  return plot;
}

Chart chart_for(const TimeGrid& grid, const GridChart& wanted, std::optional<double> top) {
  return {.id = wanted.id,
          .section = wanted.section,
          .title = wanted.title,
          .plot = plot_for(grid, wanted, top),
          .is_half = wanted.is_half};
}

std::string name_of(const GridChart& wanted, const std::string& row) {
  return wanted.names_are_numbers ? concat(wanted.one, ' ', row) : row;
}

// The number of columns of a grid that become one row of a table.
std::size_t table_step(const TimeGrid& grid) {
  return std::max<std::size_t>(1, (grid.num_columns() + kMostTableRows - 1) / kMostTableRows);
}

std::string time_of(const TimeGrid& grid, std::size_t column) {
  return clock_text(static_cast<double>(column) * grid.width());
}

void say_step(const TimeGrid& grid, Table& table) {
  if (table_step(grid) == 1) return;
  table.note = concat("One moment in ", table_step(grid), ", each the mean of ",
                      seconds_text(grid.width()), ".");
}

std::size_t row_with_most(const TimeGrid& grid) {
  std::size_t most = 0;
  for (std::size_t row = 1; row < grid.rows().size(); ++row) {
    if (grid.rows()[row].mean() > grid.rows()[most].mean()) most = row;
  }
  return most;
}

std::string peak_text(const TimeGrid& grid, const GridChart& wanted) {
  const TimeGrid::Row* peak = &grid.rows().front();
  for (const TimeGrid::Row& row : grid.rows()) {
    if (row.most > peak->most) peak = &row;
  }
  return concat("highest reading ", wanted.unit.text(peak->most),
                grid.rows().size() > 1 ? concat(" (", name_of(wanted, peak->name), ")") : "",
                " at ", clock_text(peak->most_at));
}

// Describes values that fall or rise over the whole time.
std::string course_text(const TimeGrid& grid, const GridChart& wanted) {
  std::optional<double> first, last, lowest;
  std::size_t lowest_at = 0;
  const auto spreads = spreads_of(grid);
  for (std::size_t column = 0; column < spreads.size(); ++column) {
    if (!spreads[column]) continue;
    const double middle = spreads[column]->middle;
    if (!first) first = middle;
    last = middle;
    if (!lowest || middle < *lowest) lowest = middle, lowest_at = column;
  }
  const auto ranks = static_cast<std::int64_t>(grid.rows().size());
  return concat(
      ranks > 1 ? "The middle of " + count_text(ranks, wanted.one) + ": at first " : "At first ",
      wanted.unit.text(first.value_or(0)), ", at last ", wanted.unit.text(last.value_or(0)),
      ", lowest ", wanted.unit.text(lowest.value_or(0)), " at ", time_of(grid, lowest_at), ".");
}

std::optional<double> top_for(const GridChart& wanted, const TimeGrid& grid) {
  if (wanted.top || !wanted.without_peaks) return wanted.top;
  std::vector<double> values;
  for (const auto& spread : spreads_of(grid)) {
    if (spread) values.push_back(spread->most);
  }
  return top_without_peaks(std::move(values));
}

void add_lines(const TimeGrid& grid, const GridChart& wanted, Chart& chart) {
  const std::vector<std::size_t> order = rows_in_order(grid);
  json::array& lines = chart.plot["lines"].get_array();
  chart.table.heads = {"time"};
  for (const std::size_t row : order) {
    const auto value = [&](std::size_t column) { return grid.at(row, column); };
    lines.push_back(line_of(values_of(grid, value), lines.size() >= kSeriesColours));
    const std::string name = name_of(wanted, grid.rows()[row].name);
    chart.table.heads.push_back(name);
    if (order.size() == 1) continue;
    const std::string mean = wanted.unit.text(grid.rows()[row].mean());
    chart.legend.push_back(wanted.names_worst ? concat(name, ": ", mean) : name);
  }
  for (std::size_t column = 0; column < grid.num_columns(); column += table_step(grid)) {
    std::vector<std::string> cells{time_of(grid, column)};
    for (const std::size_t row : order) {
      const auto value = grid.at(row, column);
      cells.push_back(value ? wanted.unit.text(*value) : "–");
    }
    chart.table.rows.push_back(std::move(cells));
  }
  if (!wanted.names_worst) {
    chart.summary = course_text(grid, wanted);
    return;
  }
  const TimeGrid::Row& most = grid.rows()[row_with_most(grid)];
  const std::string mean = wanted.unit.text(most.mean());
  chart.summary = order.size() == 1
                      ? concat("Mean ", mean, ", from ", wanted.unit.text(most.least), " to ",
                               wanted.unit.text(most.most), "; ", peak_text(grid, wanted), ".")
                      : concat("Means in the legend; highest mean ", mean, " (",
                               name_of(wanted, most.name), "); ", peak_text(grid, wanted), ".");
}

void add_spread(const TimeGrid& grid, const GridChart& wanted, Chart& chart) {
  const auto spreads = spreads_of(grid);
  const auto part_of = [&](double Spread::*part) {
    return values_of(grid, [&](std::size_t column) {
      return spreads[column] ? std::optional(*spreads[column].*part) : std::nullopt;
    });
  };
  const std::size_t worst = row_with_most(grid);
  const TimeGrid::Row& most = grid.rows()[worst];
  std::vector<double> means;
  for (const TimeGrid::Row& row : grid.rows()) means.push_back(row.mean());
  std::sort(means.begin(), means.end());
  const std::string all = count_text(static_cast<std::int64_t>(means.size()), wanted.one);
  json::array& lines = chart.plot["lines"].get_array();
  lines.push_back(line_of(part_of(&Spread::middle)));
  chart.legend = {"the middle of " + all};
  if (!wanted.names_worst) {
    chart.summary = course_text(grid, wanted);
  } else {
    lines.push_back(
        line_of(values_of(grid, [&](std::size_t column) { return grid.at(worst, column); }), true));
    chart.legend.push_back(name_of(wanted, most.name) + ", highest mean");
    const auto& text = wanted.unit.text;
    chart.summary =
        concat(all, ": mean ", text(means[(means.size() - 1) / 2]), " in the middle, ",
               text(means.front()), " to ", text(means.back()),
               "; highest mean: ", name_of(wanted, most.name), "; ", peak_text(grid, wanted), ".");
  }
  chart.plot["bands"] =
      json::array{json::object{{"low", part_of(&Spread::low)}, {"high", part_of(&Spread::high)}}};
  chart.legend.emplace_back("90 % of them");
  chart.table.heads = {"time", "least", "5 %", "middle", "95 %", "most", "of"};
  for (std::size_t column = 0; column < grid.num_columns(); column += table_step(grid)) {
    if (!spreads[column]) continue;
    const Spread& spread = *spreads[column];
    std::vector<std::string> cells{time_of(grid, column)};
    for (const double value : {spread.least, spread.low, spread.middle, spread.high, spread.most}) {
      cells.push_back(wanted.unit.text(value));
    }
    cells.push_back(name_of(wanted, grid.rows()[spread.worst].name));
    chart.table.rows.push_back(std::move(cells));
  }
}

// The sum of all rows in each column.
class Sums {
 public:
  explicit Sums(const TimeGrid& grid) : spreads_(spreads_of(grid)) {}

  std::optional<double> at(std::size_t column) const {
    const bool is_there = column < spreads_.size() && spreads_[column];
    return is_there ? std::optional(spreads_[column]->sum) : std::nullopt;
  }
  // Returns "mean 154 GB/s, at most 160 GB/s".
  std::string text(const Unit& unit) const {
    double sum = 0, most = 0, number = 0;
    for (const auto& spread : spreads_) {
      if (!spread) continue;
      sum += spread->sum;
      most = std::max(most, spread->sum);
      ++number;
    }
    return concat("mean ", unit.text(number > 0 ? sum / number : 0), ", at most ", unit.text(most));
  }

 private:
  const std::vector<std::optional<Spread>> spreads_;
};

// Draws the sums by name, over the columns of the longest grid.
Chart sums_of(const TimeGrid& longest, const std::vector<std::pair<const char*, Sums>>& named,
              const GridChart& wanted) {
  Chart chart = chart_for(longest, wanted, wanted.top);
  json::array& lines = chart.plot["lines"].get_array();
  chart.table.heads = {"time"};
  for (const auto& [name, sums] : named) {
    const auto value = [&sums = sums](std::size_t column) { return sums.at(column); };
    lines.push_back(line_of(values_of(longest, value), !lines.empty()));
    chart.table.heads.emplace_back(name);
    if (named.size() > 1) chart.legend.emplace_back(name);
  }
  for (std::size_t column = 0; column < longest.num_columns(); column += table_step(longest)) {
    std::vector<std::string> cells{time_of(longest, column)};
    bool is_known = false;
    for (const auto& [name, sums] : named) {
      const auto sum = sums.at(column);
      is_known = is_known || sum;
      cells.push_back(sum ? wanted.unit.text(*sum) : "–");
    }
    if (is_known) chart.table.rows.push_back(std::move(cells));
  }
  say_step(longest, chart.table);
  return chart;
}

}  // namespace

const Unit kWatts{"watts", [](double value) { return concat(ctl::number_text(value), " W"); }};
const Unit kCelsius{"celsius", [](double value) { return concat(ctl::number_text(value), " °C"); }};

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return std::strtod(text, nullptr);
}

std::vector<std::size_t> rows_in_order(const TimeGrid& grid) {
  std::vector<std::size_t> order(grid.rows().size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::string &first = grid.rows()[a].name, &second = grid.rows()[b].name;
    const auto first_number = parsed_number<std::int64_t>(first),
               second_number = parsed_number<std::int64_t>(second);
    if (first_number && second_number) return *first_number < *second_number;
    return first < second;
  });
  return order;
}

std::vector<std::optional<Spread>> spreads_of(const TimeGrid& grid) {
  std::vector<std::optional<Spread>> spreads(grid.num_columns());
  std::vector<double> values;
  for (std::size_t column = 0; column < grid.num_columns(); ++column) {
    values.clear();
    Spread spread;
    for (std::size_t row = 0; row < grid.rows().size(); ++row) {
      const auto value = grid.at(row, column);
      if (!value) continue;
      if (values.empty() || *value > spread.most) spread.most = *value, spread.worst = row;
      values.push_back(*value);
      spread.sum += *value;
    }
    if (values.empty()) continue;
    std::sort(values.begin(), values.end());
    const auto part = [&](double share) {
      return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
    };
    spread.least = values.front();
    spread.low = part(0.05);
    spread.middle = part(0.5);
    spread.high = part(0.95);
    spreads[column] = spread;
  }
  return spreads;
}

std::optional<double> top_without_peaks(std::vector<double> values) {
  constexpr std::size_t kFew = 20;
  constexpr double kPeak = 2.5;  // times the value that nearly all are below
  if (values.size() < kFew) return std::nullopt;
  const auto most = static_cast<std::ptrdiff_t>(values.size() * 97 / 100);
  std::nth_element(values.begin(), values.begin() + most, values.end());
  const double nearly_all = values[static_cast<std::size_t>(most)];
  const double highest = *std::max_element(values.begin() + most, values.end());
  if (highest <= kPeak * nearly_all || nearly_all <= 0) return std::nullopt;
  return 1.2 * nearly_all;
}

Chart chart_of(const TimeGrid& grid, const GridChart& wanted) {
  const std::optional<double> top = top_for(wanted, grid);
  Chart chart = chart_for(grid, wanted, top);
  if (grid.rows().size() <= wanted.most_lines) {
    add_lines(grid, wanted, chart);
  } else {
    add_spread(grid, wanted, chart);
  }
  if (top && !wanted.top) chart.summary += " Peaks above the scale are cut.";
  say_step(grid, chart.table);
  return chart;
}

Chart sum_chart_of(const TimeGrid& grid, const GridChart& wanted) {
  const Sums sums(grid);
  Chart chart = sums_of(grid, {{"sum", sums}}, wanted);
  chart.summary =
      concat("Sum of ", count_text(static_cast<std::int64_t>(grid.rows().size()), wanted.one), ": ",
             sums.text(wanted.unit), ".");
  return chart;
}

Chart two_sums_chart_of(const TimeGrid& first, const char* first_name, const TimeGrid& second,
                        const char* second_name, const GridChart& wanted) {
  const Sums one(first), other(second);
  Chart chart = sums_of(first.num_columns() < second.num_columns() ? second : first,
                        {{first_name, one}, {second_name, other}}, wanted);
  chart.summary = concat(count_text(static_cast<std::int64_t>(first.rows().size()), wanted.one),
                         ": ", first_name, ' ', one.text(wanted.unit), "; ", second_name, ' ',
                         other.text(wanted.unit), ".");
  return chart;
}

HeatMap heat_map_of(const TimeGrid& grid, const std::vector<std::size_t>& order, const Unit& unit,
                    double seconds) {
  HeatMap map{.rows_of_line = (order.size() + kMostHeatLines - 1) / kMostHeatLines};
  const std::size_t columns_of_step = (grid.num_columns() + kMostHeatSteps - 1) / kMostHeatSteps;
  json::array lines;
  for (std::size_t first = 0; first < order.size(); first += map.rows_of_line) {
    const std::size_t last = std::min(first + map.rows_of_line, order.size());
    std::vector<std::optional<double>> highest((grid.num_columns() + columns_of_step - 1) /
                                               columns_of_step);
    for (std::size_t row = first; row < last; ++row) {
      for (std::size_t column = 0; column < grid.num_columns(); ++column) {
        auto& most = highest[column / columns_of_step];
        const auto value = grid.at(order[row], column);
        if (value) most = std::max(most.value_or(*value), *value);
      }
    }
    json::array values;
    for (const auto& value : highest) values.push_back(value_of(value));
    lines.push_back(
        json::object{{"name", grid.rows()[order[first]].name}, {"values", std::move(values)}});
  }
  map.plot = {{"kind", "heat"},
              {"unit", unit.name},
              {"x_high", rounded(seconds)},
              {"step", grid.width() * static_cast<double>(columns_of_step)},
              {"lines", std::move(lines)}};
  return map;
}

}  // namespace ddprun::report
