// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/line_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ddprun::report {
namespace {

constexpr double kAxisTextSize = 11, kPlotTop = 10, kRight = 14, kBottom = 24, kGap = 8;
constexpr int kLinesOfGrid = 4;
constexpr std::size_t kMostMarks = 60;
constexpr double kPeak = 2.5;  // times what nearly all are below

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(const Runs& runs) {
    for (const auto& run : runs) {
      for (const Point& point : run) low = std::min(low, point.y), high = std::max(high, point.y);
    }
  }
};

std::vector<double> y_ticks(const LinePlot& plot) {
  Range range;
  for (const PlotLine& line : plot.lines) range.add(line.runs);
  for (const PlotBand& band : plot.bands) range.add(band.low), range.add(band.high);
  if (range.high < range.low) range.low = 0, range.high = 1;
  if (plot.from_zero) range.low = std::min(range.low, 0.0);
  if (plot.y_top) range.high = *plot.y_top;
  if (plot.y_is_bytes && range.low >= 0)
    return nice_byte_ticks(std::max(range.high, 1.0), kLinesOfGrid);
  // All nothing is a line at the bottom, not in the middle.
  if (range.low == 0 && range.high == 0) range.high = 1;
  return nice_ticks(range.low, range.high, kLinesOfGrid);
}

// From the units of the axes to those of the drawing.
class Axes {
 public:
  Axes(const LinePlot& plot, const std::vector<double>& y_ticks) : plot_(plot) {
    low_ = y_ticks.front();
    high_ = y_ticks.back();
    double widest = 0;
    for (const double tick : y_ticks) {
      widest = std::max(widest, text_width(tick_text(tick, plot.y_text), kAxisTextSize));
    }
    left_ = widest + kGap;
  }

  double left() const { return left_; }
  double right() const { return plot_.width - kRight; }
  double bottom() const { return plot_.height - kBottom; }
  double x(double value) const {
    const double length = std::max(plot_.x_high - plot_.x_low, 1e-9);
    return left_ + (right() - left_) * std::clamp((value - plot_.x_low) / length, 0.0, 1.0);
  }
  double y(double value) const {
    const double share = std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
    return bottom() - (bottom() - kPlotTop) * share;
  }
  std::vector<Point> points(const std::vector<Point>& run) const {
    std::vector<Point> points;
    points.reserve(run.size());
    for (const Point& each : run) points.push_back({x(each.x), y(each.y)});
    return points;
  }

 private:
  const LinePlot& plot_;
  double left_ = 0, low_ = 0, high_ = 1;
};

// At the ends of the axis a label stays within it.
Anchor anchor_at(double x, const Axes& axes) {
  constexpr double kNear = 30;
  if (x < axes.left() + kNear) return Anchor::kStart;
  return x > axes.right() - kNear ? Anchor::kEnd : Anchor::kMiddle;
}

void draw_axes(const LinePlot& plot, const Axes& axes, const std::vector<double>& ticks,
               Drawing& drawing) {
  Shape grid{.paint = kRule, .filled = false};
  std::string before;
  for (const double tick : ticks) {
    grid.parts.push_back({{axes.left(), axes.y(tick)}, {axes.right(), axes.y(tick)}});
    std::string text = tick_text(tick, plot.y_text);
    if (text == before) continue;  // less than a byte, say, has no text of its own
    before = text;
    drawing.labels.push_back({.at = {axes.left() - kGap, axes.y(tick) + kAxisTextSize / 3},
                              .text = std::move(text),
                              .anchor = Anchor::kEnd});
  }
  drawing.shapes.push_back(std::move(grid));
  // A time needs room, an epoch little.
  const int wanted = static_cast<int>((axes.right() - axes.left()) / (plot.x_is_time ? 90 : 40));
  std::vector<double> along;
  if (plot.x_is_time) {
    along = time_ticks(plot.x_high, wanted);
  } else {
    for (const double each : nice_ticks(plot.x_low, plot.x_high, wanted)) {
      if (each >= plot.x_low && each <= plot.x_high && each == std::floor(each))
        along.push_back(each);
    }
  }
  for (const double each : along) {
    drawing.labels.push_back({.at = {axes.x(each), plot.height - kBottom + kAxisTextSize + 5},
                              .text = plot.x_is_time ? clock_text(each) : number_text(each),
                              .anchor = anchor_at(axes.x(each), axes)});
  }
}

// A value that stands alone is a short line.
void add_run(const Axes& axes, const std::vector<Point>& run, Shape& shape) {
  std::vector<Point> points = axes.points(run);
  if (points.size() == 1) {
    points.push_back(points.front());
    points.front().x = std::max(points.front().x - 2, axes.left());
    points.back().x = std::min(points.back().x + 2, axes.right());
  }
  if (!points.empty()) shape.parts.push_back(std::move(points));
}

}  // namespace

Drawing draw(const LinePlot& plot) {
  Drawing drawing{.width = plot.width, .height = plot.height};
  const std::vector<double> ticks = y_ticks(plot);
  const Axes axes(plot, ticks);
  draw_axes(plot, axes, ticks, drawing);
  for (const PlotBand& band : plot.bands) {
    Shape shape{.paint = band.paint, .opacity = band.opacity};
    for (std::size_t run = 0; run < band.low.size(); ++run) {
      std::vector<Point> outline = axes.points(band.high[run]);
      const std::vector<Point> below = axes.points(band.low[run]);
      outline.insert(outline.end(), below.rbegin(), below.rend());
      if (outline.size() > 2) shape.parts.push_back(std::move(outline));
    }
    drawing.shapes.push_back(std::move(shape));
  }
  if (!plot.marks.empty() && plot.marks.size() <= kMostMarks) {
    Shape marks{.paint = kRed, .filled = false, .dashed = true};
    for (const double mark : plot.marks) {
      marks.parts.push_back({{axes.x(mark), kPlotTop}, {axes.x(mark), axes.bottom()}});
    }
    drawing.shapes.push_back(std::move(marks));
  }
  for (const PlotLine& line : plot.lines) {
    Shape shape{.paint = line.paint, .filled = false, .width = 1.8, .dashed = line.dashed};
    for (const auto& run : line.runs) add_run(axes, run, shape);
    drawing.shapes.push_back(std::move(shape));
  }
  return drawing;
}

std::optional<double> top_without_peaks(std::vector<double> values) {
  constexpr std::size_t kFew = 20;
  if (values.size() < kFew) return std::nullopt;
  const auto most = static_cast<std::ptrdiff_t>(values.size() * 97 / 100);
  std::nth_element(values.begin(), values.begin() + most, values.end());
  const double nearly_all = values[static_cast<std::size_t>(most)];
  const double highest = *std::max_element(values.begin() + most, values.end());
  if (highest <= kPeak * nearly_all || nearly_all <= 0) return std::nullopt;
  return 1.2 * nearly_all;
}

}  // namespace ddprun::report
