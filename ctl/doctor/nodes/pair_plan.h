// SPDX-License-Identifier: Apache-2.0
// Which two nodes measure the way between them, and when: steps, in each of which a node has one
// partner at most. Pure. docs/doctor.md.
#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace ddprun::doctor {

using NodePair = std::pair<int, int>;  // the first one begins
using Step = std::vector<NodePair>;

// Of so many nodes or fewer every pair is measured; of more each node meets two partners.
inline constexpr std::size_t kMostNodesForAllPairs = 8;

// Every pair once: as many steps as nodes, less one where they are even.
std::vector<Step> all_pairs(const std::vector<int>& nodes);

// Neighbours: (0, 1), (2, 3), …; the last of an odd number is left for the second step.
Step first_step(const std::vector<int>& nodes);

// The slowest node with the fastest one, and so on, so that a slow node is told from one that had a
// slow partner. `speed`: of a node in the first step, 0 where it isn't known. Nobody meets the
// partner of the first step again where that can be avoided. What is left over of an odd number
// meets the fastest one in a third step.
std::vector<Step> second_steps(const std::vector<int>& nodes, const Step& first,
                               const std::function<double(int node)>& speed);

}  // namespace ddprun::doctor
