// SPDX-License-Identifier: Apache-2.0
// The parts of a picture: lines of at most `columns`, without a title that says whose they are.
// Pure.
#pragma once

#include <cstddef>

#include "ctl/top/history.h"
#include "ctl/top/state.h"
#include "ctl/top/styled_text.h"
#include "ctl/top/view.h"

namespace ddprun::top {

struct PanelSize {
  std::size_t columns = 80;
  std::size_t cell_rows = 0;  // of ranks; 0: as many as it takes
  bool has_gaps = false;      // an empty line between the sections
};
// All that is shown of one job, the most urgent first.
Lines job_lines(const Job& job, const JobHistory& history, NodeOrder order, const PanelSize& size);

// How the ranks are. At most `rows` rows of cells (0: as many as it takes): one cell for each rank,
// in groups by node; without room for that one for each node, or for several, as the worst of them
// is. Below: stragglers as the daemon tells of them, then the slowest ranks, by name.
Lines rank_lines(const Job& job, std::size_t columns, std::size_t rows);

// The nodes as a table with as many columns as there are values for, and room.
Lines node_lines(const Job& job, NodeOrder order, std::size_t columns);

char phase_style(std::string_view phase);

}  // namespace ddprun::top
