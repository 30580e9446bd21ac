// SPDX-License-Identifier: Apache-2.0
// Who is to blame for a slow way: a node that is slow with everybody, or a way between two good
// nodes? Pure.
#pragma once

#include <vector>

namespace ddprun::doctor {

// One direction between two nodes. A larger cost is worse: seconds, or seconds for a bit.
struct Way {
  int from = 0, to = 0;
  double cost = 0;
};

struct Outliers {
  double usual = 0;        // cost; 0: nothing was measured
  std::vector<int> nodes;  // that are slow with each of their partners, of which they have several
  std::vector<Way> ways;   // other slow ones
};

// A way is slow that costs more than `factor` × the usual, and `least` more than it. Usual is the
// median over the nodes of each one's best way, so that a bad node, whose partners are then slow in
// some ways, too, doesn't move it.
Outliers find_outliers(const std::vector<Way>& ways, double factor, double least);

// The lower one where there are two; 0 of none.
double median_of(std::vector<double> values);

}  // namespace ddprun::doctor
