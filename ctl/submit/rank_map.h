// SPDX-License-Identifier: Apache-2.0
// Which ranks a job's nodes will have, as far as its file alone says. Pure.
#pragma once

#include <string>
#include <vector>

#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Of a place that gives nodes their ranks in its own order; `node` is the name of each, where "#"
// is its number: "node # of the step". The most nodes that the job can have, spares last.
std::vector<RankRow> rank_map(const JobFile& job, const std::string& node);

// What is taken for granted in it; empty: nothing.
std::vector<std::string> rank_notes(const JobFile& job);

// How many nodes it asks for: at least, at most, spares among them.
struct NodeCount {
  int least = 1, most = 1;
};
NodeCount nodes_wanted(const JobFile& job);

}  // namespace ddprun::submit
