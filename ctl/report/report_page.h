// SPDX-License-Identifier: Apache-2.0
// The report as one HTML document that asks for nothing outside itself. All texts, numbers and
// tables are in it; its own script draws the charts. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ctl/report/charts.h"
#include "ctl/report/facts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

std::string report_page(const Record& record, const Facts& facts, const std::vector<Chart>& charts);

// As the text of an element or the value of an attribute.
std::string html_text(std::string_view text);

// The files of page/ and common/web/, as they were at build time (page/page.cmake).
extern const std::string_view kReportStyle, kReportScript;
extern const std::string_view kReportPolicy;  // lets a browser use these, and ask for nothing
extern const std::string_view kReportIcon;    // a <link> with its picture in it

}  // namespace ddprun::report
