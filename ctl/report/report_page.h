// SPDX-License-Identifier: Apache-2.0
// Makes the report: one HTML document that loads nothing from outside. It holds all texts, numbers
// and tables, and the script that draws the charts. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ctl/report/charts.h"
#include "ctl/report/facts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

std::string report_page(const Record& record, const Facts& facts, const std::vector<Chart>& charts);

// Escapes text for use inside an element, or as an attribute's value.
std::string html_text(std::string_view text);

// The files of page/ and common/web/, built into the program (page/page.cmake).
extern const std::string_view kReportStyle, kReportScript;
extern const std::string_view kReportPolicy;  // allows these and pictures in the page, nothing else
extern const std::string_view kReportIcon;    // a <link> that contains the picture

}  // namespace ddprun::report
