// SPDX-License-Identifier: Apache-2.0
// A drawing as SVG inside a page, which has the colours (page/report.css). Pure.
#pragma once

#include <string>

#include "ctl/report/drawing.h"

namespace ddprun::report {

// An <svg> with its text selectable; hidden from screen readers, which have a chart's summary and
// table.
std::string to_svg(const Drawing& drawing);

}  // namespace ddprun::report
