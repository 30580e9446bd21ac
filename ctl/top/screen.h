// SPDX-License-Identifier: Apache-2.0
// What a terminal has to be sent so that it shows other lines than before: those that differ. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ctl/top/line.h"

namespace ddprun::top {

class Screen {
 public:
  explicit Screen(const Look& look) : look_(look) {}

  // At the begin and at the end: another screen than the shell's, without a cursor; lines that are
  // too long are cut.
  static std::string entered();
  static std::string left();

  // What is there is not known any more: the next picture is drawn as a whole.
  void forget() { is_known_ = false; }
  // `lines`, one for each row, of at most `columns`; empty where nothing differs. All of them where
  // the size does.
  std::string changes(const std::vector<Line>& lines, std::size_t columns);

 private:
  const Look look_;
  bool is_known_ = false;
  std::size_t columns_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace ddprun::top
