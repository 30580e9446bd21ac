// SPDX-License-Identifier: Apache-2.0
// Which pairs of nodes are measured once more before anybody is blamed: a moment's noise, of
// another job or a busy CPU, is no slow cable. Pure. docs/doctor.md.
#pragma once

#include <vector>

#include "ctl/doctor/nodes/node_sheet.h"
#include "ctl/doctor/nodes/pair_plan.h"

namespace ddprun::doctor {

// Those that did send data, and of which a direction would be a finding: slower than the usual by
// more than `factor`, or than `least` bits per second.
std::vector<NodePair> pairs_to_repeat(const std::vector<PairMeasure>& measures, double factor,
                                      double least);

// All of them, each node in one pair of a step at most, as early as possible.
std::vector<Step> steps_for(const std::vector<NodePair>& pairs);

// What the way has shown that it can: the better figure of each kind. An `again` that failed
// changes nothing. Whichever of the two nodes began.
PairMeasure better_of(const PairMeasure& first, const PairMeasure& again);

}  // namespace ddprun::doctor
