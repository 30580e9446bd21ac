// SPDX-License-Identifier: Apache-2.0
// Makes all charts of a record, in the order in which a page shows them. Pure: a chart has texts
// and values, and the page's script draws it (common/web/plot.js).
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "ctl/report/facts.h"
#include "ctl/report/record.h"

namespace ddprun::report {

struct Table {
  std::vector<std::string> heads = {};  // the first column's cells are the heads of their lines
  std::vector<std::vector<std::string>> rows = {};
  std::string note = {};  // says what the table leaves out
};

enum class Section { kTime, kRounds, kTraining, kSteps, kNetwork, kMachines, kGpus };

struct Chart {
  std::string id;  // "step_time"; also the name of its PNG file
  Section section = Section::kTime;
  std::string title = {}, summary = {};
  std::vector<std::string> legend = {};  // in the order of plot's lines and bands, or of its phases
  boost::json::object plot = {};         // for page/report.js
  Table table = {};
  bool is_half = false;  // two such charts stand side by side
};

// The charts that the record has values for.
std::vector<Chart> charts_of(const Record& record, const Facts& facts);

}  // namespace ddprun::report
