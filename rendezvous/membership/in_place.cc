// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/in_place.h"

#include <algorithm>

#include "common/log.h"
#include "rendezvous/membership/job_settings.h"

namespace ddprun::membership {

std::string doubt_about_failure(const JobState& job, const WorkerFailure& failure) {
  if (job.settings.recovery != Recovery::kInPlace) return "not asked for";
  // Workers may ask an old store, or an old round's part of one, as long as they live.
  if (!store_is_at_node(job.settings)) return "the workers' store is at the rendezvous";
  if (failure.hung) return "no worker has died";
  if (job.verdict_after_stop) return "the job ends";
  if (!job.preempting.empty()) return "a node is about to be taken away";
  int num_members = 0;
  for (const auto& [id, node] : job.nodes) {
    if (!is_member(node)) continue;
    ++num_members;
    if (node.phase == NodePhase::kStarting) return describe(node) + " still starts";
    if (node.phase != NodePhase::kRunning) return describe(node) + " has finished";
    if (!node.connection) return describe(node) + " has no connection";
    if (node.excluded) return describe(node) + " is excluded";
  }
  if (num_members != job.round_nodes) return "a node was lost";
  return {};
}

std::string doubt_about_kept(const JobState& job) {
  if (job.verdict_after_stop) return "the job ends";
  int num_members = 0;
  for (const auto& [id, node] : job.nodes) {
    if (!is_member(node)) continue;
    ++num_members;
    if (node.kept == 0) return describe(node) + " has no workers to go on with";
    if (!node.connection) return describe(node) + " has no connection";
    if (node.excluded || node.left || node.warned) return describe(node) + " goes";
  }
  if (num_members != job.round_nodes) return "a node was lost";
  return {};
}

std::vector<NodeId> members_in_order(const JobState& job) {
  std::vector<NodeId> order;
  for (const auto& [id, node] : job.nodes) {
    if (is_member(node)) order.push_back(id);
  }
  std::sort(order.begin(), order.end(), [&](NodeId a, NodeId b) {
    return job.nodes.at(a).node_rank < job.nodes.at(b).node_rank;
  });
  return order;
}

}  // namespace ddprun::membership
