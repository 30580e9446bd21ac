// SPDX-License-Identifier: Apache-2.0
// All charts of a record, in the order in which a page shows them. Pure.
#pragma once

#include <vector>

#include "ctl/report/chart.h"
#include "ctl/report/facts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

// Only those that there is something for.
std::vector<Chart> charts_of(const Record& record, const Facts& facts);

// The colour of a phase, as on the status page.
Paint phase_paint(std::size_t phase);

}  // namespace ddprun::report
