// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/screen.h"

#include <utility>

#include "common/log.h"

namespace ddprun::top {

// ?1049: the alternate screen; ?25: the cursor; ?7: going on in the next line.
std::string Screen::entered() { return "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"; }
std::string Screen::left() { return "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"; }

std::string Screen::changes(const std::vector<Line>& lines, std::size_t columns) {
  std::string all;
  // A terminal of another size may have moved all that it shows.
  const bool is_same_size = columns == columns_ && lines.size() == shown_.size();
  const bool is_whole = !std::exchange(is_known_, true) || !is_same_size;
  columns_ = columns;
  if (is_whole) all = "\x1b[0m\x1b[2J";
  const std::vector<std::string> before = std::exchange(shown_, {});
  for (std::size_t row = 0; row < lines.size(); ++row) {
    const std::string& now = shown_.emplace_back(shown(lines[row], look_));
    if (is_whole ? now.empty() : before[row] == now) continue;
    all += concat("\x1b[", row + 1, ";1H", now);
    // Behind the last column there is nothing to wipe, and some terminals would wipe that one.
    if (lines[row].columns() < columns) all += "\x1b[K";
  }
  return all;
}

}  // namespace ddprun::top
