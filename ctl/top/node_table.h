// SPDX-License-Identifier: Apache-2.0
// The nodes of a job as a table. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "ctl/top/line.h"
#include "ctl/top/state.h"
#include "ctl/top/view.h"

namespace ddprun::top {

// A title, a head, and a line for each; as many columns as there are values for and room.
std::vector<Line> node_lines(const Job& job, NodeOrder order, std::size_t columns);

}  // namespace ddprun::top
