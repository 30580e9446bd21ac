// SPDX-License-Identifier: Apache-2.0
// Whether a node is fit for its part of the job: the checks that every node makes before it joins,
// and again before it starts the workers of a round. Pure. docs/preflight.md.
#pragma once

#include <string>
#include <vector>

#include "agent/preflight/node_facts.h"

namespace ddprun::agent {

// A check that failed. `check` is its name in docs/preflight.md.
struct NodeProblem {
  std::string check;
  std::string seen;    // "/tmp is on a file system that can only be read"
  std::string wanted;  // what would do, or what puts it right
};

// Only what makes the workers fail for sure: a node is kept out because of it.
std::vector<NodeProblem> check_node(const NodeNeeds& needs, const NodeFacts& facts);

// "check: seen; wanted".
std::string to_text(const NodeProblem& problem);

// All of them as one line.
std::string to_text(const std::vector<NodeProblem>& problems);

}  // namespace ddprun::agent
