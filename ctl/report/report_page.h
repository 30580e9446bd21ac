// SPDX-License-Identifier: Apache-2.0
// The report as one HTML document that asks for nothing outside itself and needs no script. Pure.
#pragma once

#include <string>
#include <vector>

#include "ctl/report/chart.h"
#include "ctl/report/facts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

std::string report_page(const Record& record, const Facts& facts, const std::vector<Chart>& charts);

}  // namespace ddprun::report
