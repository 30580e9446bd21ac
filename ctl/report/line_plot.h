// SPDX-License-Identifier: Apache-2.0
// Lines and bands over a job's time, or over its epochs. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ctl/report/drawing.h"
#include "ctl/report/numbers.h"

namespace ddprun::report {

// Points that follow each other; between two runs nothing is known.
using Runs = std::vector<std::vector<Point>>;

struct PlotLine {
  Paint paint;
  bool dashed = false;
  Runs runs;  // in the units of the axes
};

struct PlotBand {
  Paint paint;
  double opacity = 1;
  Runs low, high;  // of the same shape
};

struct LinePlot {
  double width = 900, height = 240;
  double x_low = 0, x_high = 1;
  bool x_is_time = true;
  TextOf y_text = number_text;
  bool y_is_bytes = false;
  bool from_zero = true;
  std::optional<double> y_top = {};  // the scale ends there, and what is above is cut
  std::vector<PlotBand> bands = {};  // under the lines
  std::vector<PlotLine> lines = {};
  std::vector<double> marks = {};  // where on the x axis rounds began
};

Drawing draw(const LinePlot& plot);

// For y_top: where few values are far above all others, as of a first step, a scale that shows the
// others. nullopt: all can be shown.
std::optional<double> top_without_peaks(std::vector<double> values);

}  // namespace ddprun::report
