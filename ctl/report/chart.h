// SPDX-License-Identifier: Apache-2.0
// A chart with all that it says as text beside it. Plain data.
#pragma once

#include <string>
#include <vector>

#include "ctl/report/drawing.h"

namespace ddprun::report {

struct LegendEntry {
  enum class Sign { kLine, kDashes, kArea };
  Paint paint;
  Sign sign = Sign::kLine;
  std::string text;
};

struct Table {
  std::vector<std::string> heads = {};  // the first column's cells are heads of their lines
  std::vector<std::vector<std::string>> rows = {};
  std::string note = {};  // what is left out
};

enum class Section { kTime, kRounds, kTraining, kSteps, kNetwork, kMachines, kGpus };

struct Chart {
  std::string id;  // "step_time"; its PNG's name
  Section section = Section::kTime;
  std::string title = {}, summary = {};
  std::vector<LegendEntry> legend = {};
  Drawing drawing = {};
  Table table = {};
  bool is_half = false;  // two stand side by side
};

}  // namespace ddprun::report
