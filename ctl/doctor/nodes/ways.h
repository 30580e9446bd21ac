// SPDX-License-Identifier: Apache-2.0
// The ways between nodes. Decides which two nodes measure one, and when. Says what is to blame for
// a slow one: a node that is slow with everybody, or a way between two good nodes. Pure.
// docs/doctor.md.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "ctl/doctor/nodes/nodes_facts.h"

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
// median over the nodes of each one's best way. So a bad node, whose partners are slow in some
// ways, too, doesn't move it.
Outliers find_outliers(const std::vector<Way>& ways, double factor, double least);

// The lower one of two middle values; 0 if there is none.
double median_of(std::vector<double> values);

using NodePair = std::pair<int, int>;  // the first one begins
using Step = std::vector<NodePair>;    // in which a node has one partner at most

// With at most this many nodes every pair is measured; with more, each node meets two partners.
inline constexpr std::size_t kMostNodesForAllPairs = 8;

// Every pair once: as many steps as nodes, less one where they are even.
std::vector<Step> all_pairs(const std::vector<int>& nodes);

// Neighbours: (0, 1), (2, 3), …; the last of an odd number is left for the second step.
Step first_step(const std::vector<int>& nodes);

// The slowest node with the fastest one, and so on, so that a slow node is told from one that had a
// slow partner. `speed`: of a node in the first step, 0 if it isn't known. Nobody meets the partner
// of the first step again if that can be avoided. With an odd number, the node left over meets the
// fastest one in a third step.
std::vector<Step> second_steps(const std::vector<int>& nodes, const Step& first,
                               const std::function<double(int node)>& speed);

// The pairs that are measured once more before anybody is blamed: a moment's noise, of another job
// or a busy CPU, is no slow cable. Those that did send data, and have a direction that would be a
// finding. It is slower than the usual by more than `factor`, or than `least` bits per second.
std::vector<NodePair> pairs_to_repeat(const std::vector<PairMeasure>& measures, double factor,
                                      double least);

// All of them, each node in one pair of a step at most, as early as possible.
std::vector<Step> steps_for(const std::vector<NodePair>& pairs);

// The better figure of each kind: the way has shown that it can reach them. An `again` that failed
// changes nothing. Either of the two nodes may have begun.
PairMeasure better_of(const PairMeasure& first, const PairMeasure& again);

}  // namespace ddprun::doctor
