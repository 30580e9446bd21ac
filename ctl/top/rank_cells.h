// SPDX-License-Identifier: Apache-2.0
// The ranks of a job as rows of cells: how each is, and how long its own part of a step takes.
// Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "ctl/top/line.h"
#include "ctl/top/state.h"

namespace ddprun::top {

// At most `rows` rows of cells (0: as many as it takes), with what they say in words. One cell for
// each rank, in groups by node; where there is no room for that one for each node, or for several:
// the worst of them. Empty of a job without ranks.
std::vector<Line> rank_lines(const Job& job, std::size_t columns, std::size_t rows);

// Stragglers as the daemon tells of them, then by name the slowest ranks
// that take noticeably longer than the median; at most `most` lines.
std::vector<Line> slow_lines(const Job& job, std::size_t columns, std::size_t most);

}  // namespace ddprun::top
