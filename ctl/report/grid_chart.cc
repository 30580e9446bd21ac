// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/grid_chart.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "common/log.h"

namespace ddprun::report {
namespace {

constexpr double kWideHeight = 230, kHalfHeight = 170;
constexpr std::size_t kMostTableRows = 60;

std::optional<std::int64_t> number_of(const std::string& name) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

LinePlot plot_for(const GridChart& wanted) {
  return {.width = wanted.is_half ? kHalfChart : kWideChart,
          .height = wanted.is_half ? kHalfHeight : kWideHeight,
          .x_high = wanted.seconds,
          .y_text = wanted.text,
          .y_is_bytes = wanted.is_bytes,
          .from_zero = wanted.from_zero,
          .y_top = wanted.top,
          .marks = wanted.marks};
}

Chart empty_chart(const GridChart& wanted) {
  return {.id = wanted.id,
          .section = wanted.section,
          .title = wanted.title,
          .table = {},
          .is_half = wanted.is_half};
}

std::string name_of(const GridChart& wanted, const std::string& row) {
  return wanted.names_are_numbers ? concat(wanted.one, ' ', row) : row;
}

// So many columns of a grid become one row of a table.
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
  return concat("highest reading ", wanted.text(peak->most),
                grid.rows().size() > 1 ? concat(" (", name_of(wanted, peak->name), ")") : "",
                " at ", clock_text(peak->most_at));
}

// Of what falls or rises over all of the time.
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
      wanted.text(first.value_or(0)), ", at last ", wanted.text(last.value_or(0)), ", lowest ",
      wanted.text(lowest.value_or(0)), " at ", time_of(grid, lowest_at), ".");
}

std::optional<double> top_for(const GridChart& wanted, const TimeGrid& grid) {
  if (wanted.top || !wanted.without_peaks) return wanted.top;
  std::vector<double> values;
  for (const auto& spread : spreads_of(grid)) {
    if (spread) values.push_back(spread->most);
  }
  return top_without_peaks(std::move(values));
}

void draw_lines(const TimeGrid& grid, const GridChart& wanted, LinePlot& plot, Chart& chart) {
  const std::vector<std::size_t> order = rows_in_order(grid);
  chart.table.heads = {"time"};
  for (std::size_t number = 0; number < order.size(); ++number) {
    const std::size_t row = order[number];
    const bool dashed = number >= kNumSeriesPaints;
    plot.lines.push_back(
        {.paint = series_paint(number),
         .dashed = dashed,
         .runs = runs_of(grid, [&](std::size_t column) { return grid.at(row, column); })});
    chart.table.heads.push_back(name_of(wanted, grid.rows()[row].name));
    if (order.size() == 1) continue;
    chart.legend.push_back(
        {.paint = series_paint(number),
         .sign = dashed ? LegendEntry::Sign::kDashes : LegendEntry::Sign::kLine,
         .text = concat(name_of(wanted, grid.rows()[row].name),
                        wanted.names_worst ? ": " + wanted.text(grid.rows()[row].mean()) : "")});
  }
  for (std::size_t column = 0; column < grid.num_columns(); column += table_step(grid)) {
    std::vector<std::string> cells{time_of(grid, column)};
    for (const std::size_t row : order) {
      const auto value = grid.at(row, column);
      cells.push_back(value ? wanted.text(*value) : "–");
    }
    chart.table.rows.push_back(std::move(cells));
  }
  if (!wanted.names_worst) {
    chart.summary = course_text(grid, wanted);
    return;
  }
  const TimeGrid::Row& most = grid.rows()[row_with_most(grid)];
  chart.summary =
      order.size() == 1
          ? concat("Mean ", wanted.text(most.mean()), ", from ", wanted.text(most.least), " to ",
                   wanted.text(most.most), "; ", peak_text(grid, wanted), ".")
          : concat("Means in the legend; highest mean ", wanted.text(most.mean()), " (",
                   name_of(wanted, most.name), "); ", peak_text(grid, wanted), ".");
}

void draw_spread(const TimeGrid& grid, const GridChart& wanted, LinePlot& plot, Chart& chart) {
  const auto spreads = spreads_of(grid);
  const auto runs = [&](double Spread::*part) {
    return runs_of(grid, [&](std::size_t column) {
      return spreads[column] ? std::optional(*spreads[column].*part) : std::nullopt;
    });
  };
  const std::size_t worst = row_with_most(grid);
  plot.bands.push_back({.paint = kFaint, .low = runs(&Spread::low), .high = runs(&Spread::high)});
  plot.lines.push_back({.paint = kBlue, .runs = runs(&Spread::middle)});
  if (wanted.names_worst) {
    plot.lines.push_back(
        {.paint = series_paint(1), .dashed = true, .runs = runs_of(grid, [&](std::size_t column) {
                                                     return grid.at(worst, column);
                                                   })});
  }
  std::vector<double> means;
  for (const TimeGrid::Row& row : grid.rows()) means.push_back(row.mean());
  std::sort(means.begin(), means.end());
  const TimeGrid::Row& most = grid.rows()[worst];
  const std::string all = count_text(static_cast<std::int64_t>(means.size()), wanted.one);
  chart.legend = {{.paint = kBlue, .text = "the middle of " + all},
                  {.paint = kFaint, .sign = LegendEntry::Sign::kArea, .text = "90 % of them"}};
  if (!wanted.names_worst) {
    chart.summary = course_text(grid, wanted);
  } else {
    chart.summary =
        concat(all, ": mean ", wanted.text(means[(means.size() - 1) / 2]), " in the middle, ",
               wanted.text(means.front()), " to ", wanted.text(means.back()),
               "; highest mean: ", name_of(wanted, most.name), "; ", peak_text(grid, wanted), ".");
    chart.legend.push_back({.paint = series_paint(1),
                            .sign = LegendEntry::Sign::kDashes,
                            .text = name_of(wanted, most.name) + ", highest mean"});
  }
  chart.table.heads = {"time", "least", "5 %", "middle", "95 %", "most", "of"};
  for (std::size_t column = 0; column < grid.num_columns(); column += table_step(grid)) {
    if (!spreads[column]) continue;
    const Spread& spread = *spreads[column];
    chart.table.rows.push_back({time_of(grid, column), wanted.text(spread.least),
                                wanted.text(spread.low), wanted.text(spread.middle),
                                wanted.text(spread.high), wanted.text(spread.most),
                                name_of(wanted, grid.rows()[spread.worst].name)});
  }
}

// Of all rows, column by column.
class Sums {
 public:
  explicit Sums(const TimeGrid& grid) : spreads_(spreads_of(grid)) {}

  std::optional<double> at(std::size_t column) const {
    const bool is_there = column < spreads_.size() && spreads_[column];
    return is_there ? std::optional(spreads_[column]->sum) : std::nullopt;
  }
  Runs runs(const TimeGrid& grid) const {
    return runs_of(grid, [this](std::size_t column) { return at(column); });
  }
  // "mean 154 GB/s, at most 160 GB/s"
  std::string text(const GridChart& wanted) const {
    double sum = 0, most = 0, number = 0;
    for (const auto& spread : spreads_) {
      if (!spread) continue;
      sum += spread->sum;
      most = std::max(most, spread->sum);
      ++number;
    }
    return concat("mean ", wanted.text(number > 0 ? sum / number : 0), ", at most ",
                  wanted.text(most));
  }

 private:
  const std::vector<std::optional<Spread>> spreads_;
};

void say_cut(const GridChart& wanted, const LinePlot& plot, Chart& chart) {
  if (!plot.y_top || wanted.top) return;
  chart.summary += " Peaks above the scale are cut.";
}

}  // namespace

std::vector<std::size_t> rows_in_order(const TimeGrid& grid) {
  std::vector<std::size_t> order(grid.rows().size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::string &first = grid.rows()[a].name, &second = grid.rows()[b].name;
    const auto first_number = number_of(first), second_number = number_of(second);
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

Runs runs_of(const TimeGrid& grid, const std::function<std::optional<double>(std::size_t)>& value) {
  Runs runs;
  bool goes_on = false;
  for (std::size_t column = 0; column < grid.num_columns(); ++column) {
    const auto here = value(column);
    if (here) {
      if (!goes_on) runs.emplace_back();
      runs.back().push_back({(static_cast<double>(column) + 0.5) * grid.width(), *here});
    }
    goes_on = here.has_value();
  }
  return runs;
}

Chart chart_of(const TimeGrid& grid, const GridChart& wanted) {
  Chart chart = empty_chart(wanted);
  LinePlot plot = plot_for(wanted);
  plot.y_top = top_for(wanted, grid);
  if (grid.rows().size() <= wanted.most_lines) {
    draw_lines(grid, wanted, plot, chart);
  } else {
    draw_spread(grid, wanted, plot, chart);
  }
  say_cut(wanted, plot, chart);
  say_step(grid, chart.table);
  chart.drawing = draw(plot);
  return chart;
}

Chart sum_chart_of(const TimeGrid& grid, const GridChart& wanted) {
  Chart chart = empty_chart(wanted);
  LinePlot plot = plot_for(wanted);
  const Sums sums(grid);
  plot.lines.push_back({.paint = kBlue, .runs = sums.runs(grid)});
  chart.summary =
      concat("Sum of ", count_text(static_cast<std::int64_t>(grid.rows().size()), wanted.one), ": ",
             sums.text(wanted), ".");
  chart.table.heads = {"time", "sum"};
  for (std::size_t column = 0; column < grid.num_columns(); column += table_step(grid)) {
    if (const auto sum = sums.at(column)) {
      chart.table.rows.push_back({time_of(grid, column), wanted.text(*sum)});
    }
  }
  say_step(grid, chart.table);
  chart.drawing = draw(plot);
  return chart;
}

Chart two_sums_chart_of(const TimeGrid& first, const char* first_name, const TimeGrid& second,
                        const char* second_name, const GridChart& wanted) {
  Chart chart = empty_chart(wanted);
  LinePlot plot = plot_for(wanted);
  const Sums one(first), other(second);
  plot.lines.push_back({.paint = kBlue, .runs = one.runs(first)});
  plot.lines.push_back({.paint = series_paint(1), .dashed = true, .runs = other.runs(second)});
  chart.summary =
      concat(count_text(static_cast<std::int64_t>(first.rows().size()), wanted.one), ": ",
             first_name, ' ', one.text(wanted), "; ", second_name, ' ', other.text(wanted), ".");
  chart.legend = {
      {.paint = kBlue, .text = first_name},
      {.paint = series_paint(1), .sign = LegendEntry::Sign::kDashes, .text = second_name}};
  chart.table.heads = {"time", first_name, second_name};
  for (std::size_t column = 0; column < first.num_columns(); column += table_step(first)) {
    const auto here = one.at(column), there = other.at(column);
    if (!here && !there) continue;
    chart.table.rows.push_back({time_of(first, column), here ? wanted.text(*here) : "–",
                                there ? wanted.text(*there) : "–"});
  }
  say_step(first, chart.table);
  chart.drawing = draw(plot);
  return chart;
}

}  // namespace ddprun::report
