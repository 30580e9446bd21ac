// SPDX-License-Identifier: Apache-2.0
// All that is shown of one job, the most urgent first. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "ctl/top/history.h"
#include "ctl/top/line.h"
#include "ctl/top/state.h"
#include "ctl/top/view.h"

namespace ddprun::top {

struct PanelSize {
  std::size_t columns = 80;
  std::size_t cell_rows = 0;  // of ranks; 0: as many as it takes
  bool has_gaps = false;      // an empty line between the sections
};
std::vector<Line> job_lines(const Job& job, const JobHistory& history, NodeOrder order,
                            const PanelSize& size);
std::vector<Line> finished_lines(const FinishedJob& job, std::size_t columns);

Style phase_style(std::string_view phase);

}  // namespace ddprun::top
