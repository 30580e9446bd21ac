// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/formation.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "common/check.h"

namespace ddprun::membership {
namespace {

// The rendezvous' host as seen from elsewhere: what a loopback node is to its peers. Empty when
// every node of the round came over loopback.
std::string rendezvous_addr(const JobState& job, const std::vector<NodeId>& order) {
  for (const NodeId id : order) {
    const Node& node = job.nodes.at(id);
    if (!node.facts.peer_is_loopback) return node.facts.local_addr;
  }
  return {};
}

std::string address_of(const Node& node, const Node& receiver, const std::string& rendezvous) {
  if (!node.join.advertised_addr.empty()) return node.join.advertised_addr;
  if (!node.facts.peer_is_loopback) return node.facts.peer_addr;
  if (!receiver.facts.peer_is_loopback) return receiver.facts.local_addr;
  return rendezvous.empty() ? node.facts.peer_addr : rendezvous;
}

}  // namespace

std::vector<NodeId> choose_nodes(const JobState& job) {
  std::vector<const Node*> chosen;
  for (const auto& [id, node] : job.nodes) {
    if (is_placeable(node)) chosen.push_back(&node);
  }
  const auto precedence = [](const Node* node) {
    return std::tuple(!is_member(*node), !node->join.node_rank.has_value(), node->id);
  };
  std::sort(chosen.begin(), chosen.end(),
            [&](const Node* a, const Node* b) { return precedence(a) < precedence(b); });
  const auto num_nodes = std::min(chosen.size(), static_cast<std::size_t>(job.settings.max_nodes));
  chosen.resize(num_nodes);

  std::vector<const Node*> slots(num_nodes, nullptr);
  const auto place = [&](const Node*& node, std::optional<int> wish) {
    if (node == nullptr || !wish || *wish < 0) return;
    const auto slot = static_cast<std::size_t>(*wish);
    if (slot >= num_nodes || slots[slot] != nullptr) return;
    slots[slot] = node;
    node = nullptr;
  };
  for (const Node*& node : chosen) place(node, node->node_rank);
  for (const Node*& node : chosen) {
    if (node != nullptr) place(node, node->join.node_rank);
  }
  std::erase(chosen, nullptr);
  std::sort(chosen.begin(), chosen.end(),
            [](const Node* a, const Node* b) { return a->id < b->id; });
  auto next = chosen.begin();
  std::vector<NodeId> order;
  for (const Node*& slot : slots) {
    if (slot == nullptr) slot = *next++;
    order.push_back(slot->id);
  }
  return order;
}

std::map<NodeId, StartRound> start_messages(const JobState& job, const std::vector<NodeId>& order,
                                            std::uint64_t round) {
  DDPRUN_CHECK(!order.empty());
  int world_size = 0;
  for (const NodeId id : order) world_size += job.nodes.at(id).join.num_workers;

  const Node& master = job.nodes.at(order.front());
  const std::string rendezvous = rendezvous_addr(job, order);
  std::map<NodeId, StartRound> messages;
  int first_global_rank = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const Node& node = job.nodes.at(order[rank]);
    StartRound start;
    start.round = round;
    start.restart_count = static_cast<int>(round) - 1;
    start.node_rank = static_cast<int>(rank);
    start.num_nodes = static_cast<int>(order.size());
    start.first_global_rank = first_global_rank;
    start.world_size = world_size;
    start.node_addr = address_of(node, node, rendezvous);
    start.master_node_addr = address_of(master, node, rendezvous);
    if (!is_static(job.settings)) {
      start.master_addr = start.master_node_addr;
      start.master_port = master.join.store_port;
      start.serve_store = rank == 0;
    }
    first_global_rank += node.join.num_workers;
    messages.emplace(node.id, std::move(start));
  }
  return messages;
}

}  // namespace ddprun::membership
