// SPDX-License-Identifier: Apache-2.0
// What the user sees while it trains: a bar that redraws itself on a terminal, plain lines
// elsewhere.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "common/clock.h"

namespace ddprun::train {

struct ProgressState {
  int epoch = 0;  // from 1
  int num_epochs = 0;
  int step = 0;  // done
  int num_steps = 0;
  double loss = 0;                // of this step
  double samples_per_second = 0;  // all ranks
};

// "epoch 1/5 [=====>    ]  12/24  loss 0.532  5120 samples/s", exactly `columns` - 1 wide, so that
// no terminal wraps it; without the bar, then cut, where that is too narrow. Pure.
std::string progress_line(const ProgressState& state, int columns);

// Columns of the terminal that shows this process' output: DDPRUN_TERMINAL_COLUMNS (set by the
// launcher), else stdout's own; 0: no terminal.
int terminal_columns();

// One thread.
class Progress {
 public:
  // columns = 0: no bar. A silent one (ranks other than 0) prints nothing at all.
  Progress(std::FILE* out, int columns, bool silent)
      : out_(out), columns_(columns), silent_(silent) {}

  // True where update() would draw now: at most 20 times a second, and always at an epoch's end.
  bool due(const ProgressState& state) const;
  void update(const ProgressState& state);

  // Prints a whole line; the bar disappears.
  void line(const std::string& text);

 private:
  // Constant after construction.
  std::FILE* const out_;
  const int columns_;
  const bool silent_;

  bool bar_shown_ = false;
  std::optional<Clock::time_point> last_drawn_;
};

}  // namespace ddprun::train
