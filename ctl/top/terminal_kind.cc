// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/terminal_kind.h"

// <term.h> has macros of common names, so nothing else is here.
#include <curses.h>
#include <term.h>
#include <unistd.h>

namespace ddprun::top {

bool is_terminal_described() {
  int error = 0;
  if (::setupterm(nullptr, STDOUT_FILENO, &error) != OK) return false;
  ::del_curterm(cur_term);
  return true;
}

}  // namespace ddprun::top
