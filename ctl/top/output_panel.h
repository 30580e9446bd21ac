// SPDX-License-Identifier: Apache-2.0
// What a rank wrote last, as lines of a screen. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "ctl/top/line.h"
#include "ctl/top/state.h"
#include "ctl/top/view.h"

namespace ddprun::top {

// Whether there is something to show: the chosen job runs, or it is the one whose rank was looked
// at last, and is over.
bool has_output_panel(const State& state, const View& view);

// Exactly `rows` lines, at least 1: a title, what is to be said of it, and the newest lines of
// `tail` at the bottom, each on as many rows as it needs. `tail` null: no answer has come yet.
std::vector<Line> output_lines(const State& state, const View& view, const Tail* tail,
                               std::size_t columns, std::size_t rows);

}  // namespace ddprun::top
