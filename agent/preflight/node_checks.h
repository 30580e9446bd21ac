// SPDX-License-Identifier: Apache-2.0
// Whether a node is fit for its part of the job: the checks that every node makes before it joins,
// and again before it starts the workers of a round. Pure. docs/preflight.md.
#pragma once

#include <string>
#include <vector>

#include "agent/preflight/node_facts.h"

namespace ddprun::agent {

// What a failed check means for the job.
enum class NodeVerdict {
  kUnfit,       // this node's workers would fail; another node may do
  kUsersFault,  // likewise, and so they would on another node: what was asked for can't be
  kSaid,        // they may do without
};

// A check that failed. `check` is its name in docs/preflight.md.
struct NodeProblem {
  std::string check;
  std::string seen;    // "/tmp is on a file system that can only be read"
  std::string wanted;  // what would do, or what puts it right
  NodeVerdict verdict = NodeVerdict::kUnfit;
};

// Only what makes the workers fail for sure keeps a node out; the rest is kSaid.
std::vector<NodeProblem> check_node(const NodeNeeds& needs, const NodeFacts& facts);

// "check: seen; wanted".
std::string to_text(const NodeProblem& problem);

// All of them as one line.
std::string to_text(const std::vector<NodeProblem>& problems);

}  // namespace ddprun::agent
