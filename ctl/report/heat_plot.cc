// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/heat_plot.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace ddprun::report {
namespace {

constexpr std::size_t kMostHeatLines = 128, kMostSteps = 160;
constexpr double kHeatTextSize = 11, kMostHeight = 384, kHeatLineHeight = 12, kAxis = 22,
                 kScale = 22, kHeatTop = 4;

using Line = std::vector<std::optional<double>>;

// The highest of its ranks in each step of time.
Line line_of(const TimeGrid& grid, const std::vector<std::size_t>& rows,
             std::size_t columns_of_step) {
  Line line((grid.num_columns() + columns_of_step - 1) / columns_of_step);
  for (const std::size_t row : rows) {
    for (std::size_t column = 0; column < grid.num_columns(); ++column) {
      const auto value = grid.at(row, column);
      auto& highest = line[column / columns_of_step];
      if (value) highest = std::max(highest.value_or(*value), *value);
    }
  }
  return line;
}

// From what few are below to what few are above, so that a peak, as of the first steps, doesn't
// pale all others; and so wide that what differs little looks alike.
HeatScale scale_of(const std::vector<Line>& lines) {
  std::vector<double> values;
  for (const Line& line : lines) {
    for (const auto& value : line) {
      if (value) values.push_back(*value);
    }
  }
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto part = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  constexpr double kLeastWidth = 1.5;
  HeatScale scale{.low = part(0.02), .high = std::max(part(0.97), kLeastWidth * part(0.5))};
  if (scale.high <= scale.low) scale.high = scale.low + std::max(std::abs(scale.low), 1e-9);
  return scale;
}

void draw_scale(const HeatScale& scale, double x, double y, TextOf text, Drawing& drawing) {
  constexpr double kStep = 18, kHeight = 10;
  const std::string low = text(scale.low), high = text(scale.high) + " and more";
  drawing.labels.push_back({.at = {x, y + kHeight - 1}, .text = low});
  x += text_width(low, kHeatTextSize) + 6;
  for (std::size_t level = 0; level < kNumHeatPaints; ++level, x += kStep) {
    drawing.shapes.push_back(
        {.paint = heat_paint(level), .parts = {rectangle(x, y, kStep, kHeight)}});
  }
  drawing.labels.push_back({.at = {x + 6, y + kHeight - 1}, .text = high});
}

}  // namespace

std::size_t HeatScale::level_of(double value) const {
  const double share = std::clamp((value - low) / (high - low), 0.0, 1.0);
  return std::min(static_cast<std::size_t>(share * static_cast<double>(kNumHeatPaints)),
                  kNumHeatPaints - 1);
}

HeatMap draw_heat_map(const TimeGrid& grid, const std::vector<std::size_t>& order, double width,
                      double seconds, TextOf text) {
  HeatMap map;
  map.rows_of_line = (order.size() + kMostHeatLines - 1) / kMostHeatLines;
  const std::size_t columns_of_step = (grid.num_columns() + kMostSteps - 1) / kMostSteps;
  std::vector<Line> lines;
  for (std::size_t first = 0; first < order.size(); first += map.rows_of_line) {
    const std::size_t last = std::min(first + map.rows_of_line, order.size());
    lines.push_back(line_of(grid,
                            {order.begin() + static_cast<std::ptrdiff_t>(first),
                             order.begin() + static_cast<std::ptrdiff_t>(last)},
                            columns_of_step));
  }
  map.scale = scale_of(lines);
  double widest = 0;
  for (const std::size_t row : order) {
    widest = std::max(widest, text_width(grid.rows()[row].name, kHeatTextSize));
  }
  const double left = widest + 8, right = width - 14;
  const double line_height =
      std::min(kHeatLineHeight, kMostHeight / static_cast<double>(lines.size()));
  const double bottom = kHeatTop + line_height * static_cast<double>(lines.size());
  map.drawing = {.width = width, .height = bottom + kAxis + kScale};
  Drawing& drawing = map.drawing;
  const double step_seconds = grid.width() * static_cast<double>(columns_of_step);
  const auto x_of = [&](double at) {
    return left + (right - left) * std::clamp(at / std::max(seconds, 1e-9), 0.0, 1.0);
  };
  for (std::size_t level = 0; level < kNumHeatPaints; ++level) {
    drawing.shapes.push_back({.paint = heat_paint(level)});
  }
  for (std::size_t number = 0; number < lines.size(); ++number) {
    const Line& line = lines[number];
    const double y = kHeatTop + line_height * static_cast<double>(number);
    const auto level_at = [&](std::size_t step) {
      return line[step] ? std::optional(map.scale.level_of(*line[step])) : std::nullopt;
    };
    // Neighbours of one colour are one rectangle.
    for (std::size_t step = 0; step < line.size();) {
      std::size_t end = step + 1;
      while (end < line.size() && level_at(end) == level_at(step)) ++end;
      const double from = x_of(static_cast<double>(step) * step_seconds);
      const double to = x_of(static_cast<double>(end) * step_seconds);
      if (const auto level = level_at(step)) {
        drawing.shapes[*level].parts.push_back(rectangle(from, y, to - from, line_height));
      }
      step = end;
    }
  }
  const std::size_t lines_of_label = std::max<std::size_t>(
      1, static_cast<std::size_t>(std::ceil(2 * kHeatTextSize / line_height)));
  for (std::size_t number = 0; number < lines.size(); number += lines_of_label) {
    drawing.labels.push_back(
        {.at = {left - 8, kHeatTop + line_height * static_cast<double>(number) + kHeatTextSize - 2},
         .text = grid.rows()[order[number * map.rows_of_line]].name,
         .anchor = Anchor::kEnd});
  }
  for (const double tick : time_ticks(seconds, static_cast<int>((right - left) / 90))) {
    drawing.labels.push_back({.at = {x_of(tick), bottom + kHeatTextSize + 5},
                              .text = clock_text(tick),
                              .anchor = tick == 0                 ? Anchor::kStart
                                        : x_of(tick) > right - 30 ? Anchor::kEnd
                                                                  : Anchor::kMiddle});
  }
  draw_scale(map.scale, left, bottom + kAxis + 6, text, drawing);
  return map;
}

}  // namespace ddprun::report
