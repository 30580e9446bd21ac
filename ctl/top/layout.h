// SPDX-License-Identifier: Apache-2.0
// The picture as a whole: lines for a width and a height. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "ctl/top/history.h"
#include "ctl/top/line.h"
#include "ctl/top/state.h"
#include "ctl/top/view.h"

namespace ddprun::top {

// What is known at a moment.
struct Known {
  const State* state = nullptr;  // null: nothing has come yet
  const History* history = nullptr;
  double too_large_bytes = 0;  // of a state that was not sent; 0: all were
  const Tail* tail = nullptr;  // of the rank that is looked at; null: none has come yet
};

struct Picture {
  std::vector<Line> lines;  // none longer than the width
  Extent extent;
};

// For a screen: exactly `rows` lines, at least 4 of at least 20 columns are laid out.
Picture screen_picture(const Known& known, const View& view, const Connection& connection,
                       std::size_t columns, std::size_t rows);
// For paper: the list of jobs, and all of the chosen one.
std::vector<Line> whole_picture(const Known& known, const View& view, const Connection& connection,
                                std::size_t columns);

}  // namespace ddprun::top
