// SPDX-License-Identifier: Apache-2.0
// The picture as a whole: lines for a width and a height. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ctl/top/history.h"
#include "ctl/top/state.h"
#include "ctl/top/styled_text.h"
#include "ctl/top/view.h"

namespace ddprun::top {

// To the rendezvous.
struct Connection {
  bool is_live = false;
  std::string endpoint;  // as the user named it
  std::string why;       // it is not live; harmless
  std::string shown_at;  // when what is shown came, "03:11:40"; empty: there is nothing yet
};

// All that is known at a moment.
struct Known {
  const State* state = nullptr;  // null: nothing has come yet
  const History* history = nullptr;
  double too_large_bytes = 0;         // of a state that was not sent; 0: all were
  const json::value* tail = nullptr;  // of the rank that is looked at; null: none has come yet
};

struct Picture {
  Lines lines;  // none longer than the width
  Extent extent;
};

// For a screen: exactly `rows` lines. It is laid out for at least 4 of at least 20 columns.
Picture screen_picture(const Known& known, const View& view, const Connection& connection,
                       std::size_t columns, std::size_t rows);
// For paper: the list of jobs, and all of the chosen one.
Lines paper_picture(const Known& known, const View& view, const Connection& connection,
                    std::size_t columns);

// Its parts, as lines of at most `columns`.

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
