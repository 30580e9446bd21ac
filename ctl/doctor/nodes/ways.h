// SPDX-License-Identifier: Apache-2.0
// The ways between nodes. Decides which two nodes measure their way, and when. Finds the cause of a
// slow way: one node that is slow with all others, or only that way. Pure. docs/doctor.md.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "ctl/doctor/nodes/nodes_facts.h"

namespace ddprun::doctor {

// One direction between two nodes. `cost` is in seconds, or in seconds per bit: more is worse.
struct Way {
  int from = 0, to = 0;
  double cost = 0;
};

struct Outliers {
  double usual = 0;        // the usual cost; 0: nothing was measured
  std::vector<int> nodes;  // nodes that are slow with each of their partners, at least two
  std::vector<Way> ways;   // other slow ways
};

// A way is slow if it costs more than `factor` × the usual cost, and more than `least` above it.
// The usual cost is the median of all nodes' best ways. So a bad node, which makes its partners'
// ways slow too, doesn't change it.
Outliers find_outliers(const std::vector<Way>& ways, double factor, double least);

// Returns the median, the lower of two middle values; 0: there are no values.
double median_of(std::vector<double> values);

using NodePair = std::pair<int, int>;  // the first node begins
using Step = std::vector<NodePair>;    // pairs that measure at once: a node is in one at most

// With at most this many nodes every pair is measured; with more, each node meets two partners.
inline constexpr std::size_t kMostNodesForAllPairs = 8;

// Returns steps that hold every pair once: as many steps as nodes, one less for an even number.
std::vector<Step> all_pairs(const std::vector<int>& nodes);

// Pairs neighbours: (0, 1), (2, 3), …. With an odd number the last node waits for the second step.
Step first_step(const std::vector<int>& nodes);

// Pairs the slowest node with the fastest one, and so on. This tells a slow node from one whose
// first partner was slow. `speed`: of a node in the first step, 0 if not known. Avoids the first
// step's pairs if it can. With an odd number, a third step pairs the node left over with the
// fastest one.
std::vector<Step> second_steps(const std::vector<int>& nodes, const Step& first,
                               const std::function<double(int node)>& speed);

// Returns the pairs that are measured once more before a node is blamed. A moment's noise, of
// another job or a busy CPU, is no slow cable. A pair is repeated if it sent data, and its slower
// direction costs more than `factor` × the usual, or is below `least` bits per second.
std::vector<NodePair> pairs_to_repeat(const std::vector<PairMeasure>& measures, double factor,
                                      double least);

// Puts each pair into the earliest step in which both nodes are free.
std::vector<Step> steps_for(const std::vector<NodePair>& pairs);

// Merges two measures of a way: the better value of each kind counts, since the way did reach it.
// An `again` that failed adds only its `times`. Either of the two nodes may have begun it.
PairMeasure better_of(const PairMeasure& first, const PairMeasure& again);

}  // namespace ddprun::doctor
