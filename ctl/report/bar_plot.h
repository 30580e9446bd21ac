// SPDX-License-Identifier: Apache-2.0
// Bars of several parts, one below the other; and rounds along a job's time. Pure.
#pragma once

#include <string>
#include <vector>

#include "ctl/report/drawing.h"

namespace ddprun::report {

struct BarPart {
  Paint paint;
  double begin = 0, length = 0;  // in seconds
};

struct Bar {
  std::string name;  // left of it
  std::vector<BarPart> parts;
  std::string text;  // right of it
};

// Each bar is as long as the others: its parts are shares of it.
Drawing draw_shares(const std::vector<Bar>& bars, double width);

// All along one axis of time that ends at `high`.
Drawing draw_timeline(const std::vector<Bar>& bars, double high, double width);

}  // namespace ddprun::report
