// SPDX-License-Identifier: Apache-2.0
// Charts as pictures that stand alone, with title, summary and legend in them; and the text in
// which ddprun-chart-png gets them. Pure.
//
//   picture NAME WIDTH HEIGHT
//   area #rrggbb OPACITY PART…          PART: x,y;x,y;…
//   line #rrggbb WIDTH solid|dashed PART…
//   text #rrggbb SIZE normal|bold start|middle|end X Y THE TEXT
#pragma once

#include <string>
#include <vector>

#include "ctl/report/chart.h"

namespace ddprun::report {

// The chart and what the page has around it, on one drawing.
Drawing picture_of(const Chart& chart);

std::string picture_text(const std::string& name, const Drawing& drawing);

// "#rrggbb" of a paint, as the page has it in light.
std::string light_colour(Paint paint);

}  // namespace ddprun::report
