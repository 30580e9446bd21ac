// SPDX-License-Identifier: Apache-2.0
// What ranks print, for those who look at it: asked of their nodes' agents. Nothing of it is kept.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/log.h"
#include "rendezvous/membership/job.h"

namespace ddprun::membership {

TailRoute Job::ask_for_tail(int global_rank, std::uint64_t request, Actions& out) {
  if (ended()) return {std::nullopt, "the job has ended"};
  if (state_.round == 0) return {std::nullopt, "no round has begun yet"};
  std::vector<const Node*> members;
  for (const auto& [id, node] : state_.nodes) {
    if (is_member(node)) members.push_back(&node);
  }
  std::ranges::sort(members, {}, [](const Node* node) { return *node->node_rank; });
  int first = 0, next_node_rank = 0;
  for (const Node* node : members) {
    if (*node->node_rank != next_node_rank++) {
      return {std::nullopt,
              "a node of its round is lost, and how many ranks that had is not known"};
    }
    const int num = num_workers(*node);
    if (global_rank >= first + num) {
      first += num;
      continue;
    }
    if (!node->connection) {
      return {std::nullopt, describe(*node) + " has no connection to the rendezvous"};
    }
    if (node->join.version < kTailVersion) {
      return {std::nullopt, concat("the ddprun on ", describe(*node),
                                   " is of an older version, which tells none")};
    }
    tell(*node, TailWanted{state_.round, request, global_rank}, out);
    return {node->connection, {}};
  }
  return {std::nullopt, concat("there is no rank ", global_rank, " in round ", state_.round)};
}

void Job::handle(Node& node, const Tail& message, TimePoint, Actions& out) {
  if (node.connection) out.push_back(action::TailSaid{*node.connection, message});
}

}  // namespace ddprun::membership
