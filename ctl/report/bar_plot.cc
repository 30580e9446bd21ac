// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/bar_plot.h"

#include <algorithm>

#include "ctl/report/numbers.h"

namespace ddprun::report {
namespace {

constexpr double kBarTextSize = 11, kBarHeight = 16, kPitch = 24, kSpace = 10, kMostName = 220;

// Names on the left, texts on the right, bars between them.
struct Columns {
  double left = 0, right = 0;

  Columns(const std::vector<Bar>& bars, double width) : right(width) {
    double name = 0, text = 0;
    for (const Bar& bar : bars) {
      name = std::max(name, text_width(bar.name, kBarTextSize));
      text = std::max(text, text_width(bar.text, kBarTextSize));
    }
    left = std::min(name, kMostName) + kSpace;
    right = width - (text > 0 ? text + kSpace : 4);
  }
};

void draw_names(const std::vector<Bar>& bars, const Columns& columns, Drawing& drawing) {
  double y = 4;
  for (const Bar& bar : bars) {
    const double base = y + kBarHeight - 4;
    drawing.labels.push_back({.at = {0, base},
                              .text = fitted(bar.name, kBarTextSize, columns.left - kSpace),
                              .paint = kText,
                              .size = kBarTextSize});
    drawing.labels.push_back({.at = {columns.right + kSpace, base},
                              .text = bar.text,
                              .paint = kQuiet,
                              .size = kBarTextSize});
    y += kPitch;
  }
}

Shape& shape_of(Drawing& drawing, Paint paint) {
  for (Shape& each : drawing.shapes) {
    if (each.filled && each.paint == paint) return each;
  }
  drawing.shapes.push_back({.paint = paint});
  return drawing.shapes.back();
}

}  // namespace

Drawing draw_shares(const std::vector<Bar>& bars, double width) {
  Drawing drawing{.width = width, .height = 8 + kPitch * static_cast<double>(bars.size())};
  const Columns columns(bars, width);
  double y = 4;
  for (const Bar& bar : bars) {
    double all = 0, x = columns.left;
    for (const BarPart& part : bar.parts) all += part.length;
    for (const BarPart& part : bar.parts) {
      if (part.length <= 0 || all <= 0) continue;
      const double wide = (columns.right - columns.left) * part.length / all;
      shape_of(drawing, part.paint).parts.push_back(rectangle(x, y, wide, kBarHeight));
      x += wide;
    }
    y += kPitch;
  }
  draw_names(bars, columns, drawing);
  return drawing;
}

Drawing draw_timeline(const std::vector<Bar>& bars, double high, double width) {
  constexpr double kAxis = 22, kLeast = 1.2;
  const double bottom = 4 + kPitch * static_cast<double>(bars.size());
  Drawing drawing{.width = width, .height = bottom + kAxis};
  const Columns columns(bars, width);
  const auto x_of = [&](double at) {
    return columns.left +
           (columns.right - columns.left) * std::clamp(at / std::max(high, 1e-9), 0.0, 1.0);
  };
  Shape grid{.paint = kRule, .filled = false};
  for (const double tick :
       time_ticks(high, static_cast<int>((columns.right - columns.left) / 90))) {
    const double x = x_of(tick);
    grid.parts.push_back({{x, 0}, {x, bottom}});
    drawing.labels.push_back({.at = {x, bottom + kBarTextSize + 6},
                              .text = clock_text(tick),
                              .anchor = tick == 0                ? Anchor::kStart
                                        : x > columns.right - 30 ? Anchor::kEnd
                                                                 : Anchor::kMiddle});
  }
  drawing.shapes.push_back(std::move(grid));
  double y = 4;
  for (const Bar& bar : bars) {
    for (const BarPart& part : bar.parts) {
      if (part.length <= 0) continue;
      const double from = x_of(part.begin);
      const double wide = std::max(x_of(part.begin + part.length) - from, kLeast);
      shape_of(drawing, part.paint).parts.push_back(rectangle(from, y, wide, kBarHeight));
    }
    y += kPitch;
  }
  draw_names(bars, columns, drawing);
  return drawing;
}

}  // namespace ddprun::report
