// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/formation.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "common/check.h"

namespace ddprun::membership {
namespace {

// Takes the first level of a label: returns "a" of "a.b.c" and leaves "b.c".
std::string_view take_level(std::string_view& label) {
  const std::size_t dot = label.find('.');
  const std::string_view level = label.substr(0, dot);
  label.remove_prefix(dot == std::string_view::npos ? label.size() : dot + 1);
  return level;
}

// Compares level by level, so that for "pod1.rack2" and "pod1.rack10" only the racks decide.
int compare_labels(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string level_a(take_level(a)), level_b(take_level(b));
    if (const int order = ::strverscmp(level_a.c_str(), level_b.c_str())) return order;
  }
  return static_cast<int>(!a.empty()) - static_cast<int>(!b.empty());
}

// Returns the rendezvous' address as other machines reach it: that is a loopback node's address for
// its peers. Empty if every node of the round came over loopback.
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

// Gives out the node ranks of a round.
class Seats {
 public:
  explicit Seats(std::size_t num_nodes) : nodes_(num_nodes, nullptr) {}

  // Returns false if `rank` is nullopt, doesn't exist in this round or is taken.
  bool place(std::optional<int> rank, const Node* node) {
    if (!rank || *rank < 0 || static_cast<std::size_t>(*rank) >= nodes_.size()) return false;
    if (taken(static_cast<std::size_t>(*rank))) return false;
    nodes_[static_cast<std::size_t>(*rank)] = node;
    return true;
  }
  bool taken(std::size_t rank) const { return nodes_[rank] != nullptr; }
  std::size_t num_free() const {
    return static_cast<std::size_t>(std::ranges::count(nodes_, nullptr));
  }
  // Gives the free ranks to `rest`, in its order. Its size must be the number of free ranks.
  std::vector<NodeId> filled_with(const std::vector<const Node*>& rest) const {
    auto next = rest.begin();
    std::vector<NodeId> order;
    for (const Node* node : nodes_) order.push_back(node ? node->id : (*next++)->id);
    return order;
  }

 private:
  std::vector<const Node*> nodes_;
};

}  // namespace

int shared_levels(std::string_view a, std::string_view b) {
  int shared = 0;
  while (!a.empty() && !b.empty() && take_level(a) == take_level(b)) ++shared;
  return shared;
}

bool stands_before(const Join& a, const Join& b) {
  if (a.topology.empty() != b.topology.empty()) return !a.topology.empty();
  if (const int order = compare_labels(a.topology, b.topology)) return order < 0;
  return ::strverscmp(a.host.c_str(), b.host.c_str()) < 0;
}

std::vector<NodeId> choose_nodes(const JobState& job) {
  std::vector<const Node*> candidates;
  for (const auto& [id, node] : job.nodes) {
    if (is_placeable(node)) candidates.push_back(&node);
  }
  const auto precedence = [](const Node* node) {
    return std::tuple(!is_member(*node), !node->join.node_rank.has_value(), node->id);
  };
  std::ranges::sort(candidates,
                    [&](const Node* a, const Node* b) { return precedence(a) < precedence(b); });
  const auto num_nodes =
      std::min(candidates.size(), static_cast<std::size_t>(job.settings.max_nodes));
  Seats seats(num_nodes);

  // Members and nodes with --node-rank come first, in order of precedence.
  const auto first_spare = std::stable_partition(
      candidates.begin(), candidates.end(),
      [](const Node* node) { return is_member(*node) || node->join.node_rank.has_value(); });
  std::vector<const Node*> spares(first_spare, candidates.end());
  candidates.erase(first_spare, candidates.end());
  if (candidates.size() > num_nodes) candidates.resize(num_nodes);
  for (const Node*& node : candidates) {
    if (seats.place(node->node_rank, node)) node = nullptr;
  }
  for (const Node*& node : candidates) {
    if (node != nullptr && seats.place(node->join.node_rank, node)) node = nullptr;
  }
  std::erase(candidates, nullptr);

  // A node that went is replaced by the spare that is nearest in the topology.
  std::size_t num_free = seats.num_free() - candidates.size();
  for (std::size_t rank = 0; rank < std::min(num_nodes, job.rank_labels.size()); ++rank) {
    if (num_free == 0 || seats.taken(rank) || job.rank_labels[rank].empty()) continue;
    const auto distance = [&](const Node* node) {
      return -shared_levels(node->join.topology, job.rank_labels[rank]);
    };
    const auto nearest = std::ranges::min_element(
        spares, [&](const Node* a, const Node* b) { return distance(a) < distance(b); });
    if (nearest == spares.end() || distance(*nearest) == 0) continue;
    seats.place(static_cast<int>(rank), *nearest);
    spares.erase(nearest);
    --num_free;
  }

  candidates.insert(candidates.end(), spares.begin(),
                    spares.begin() + static_cast<std::ptrdiff_t>(num_free));
  std::ranges::stable_sort(candidates, [](const Node* a, const Node* b) {
    return stands_before(a->join, b->join) || (!stands_before(b->join, a->join) && a->id < b->id);
  });
  return seats.filled_with(candidates);
}

std::map<NodeId, StartRound> start_messages(const JobState& job, const std::vector<NodeId>& order,
                                            std::uint64_t round) {
  DDPRUN_CHECK(!order.empty());
  int world_size = 0;
  std::map<std::string, int> role_sizes, next_role_rank;
  for (const NodeId id : order) {
    const Node& node = job.nodes.at(id);
    world_size += num_workers(node);
    role_sizes[node.join.role] += num_workers(node);
  }

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
    start.first_role_rank = next_role_rank[node.join.role];
    start.role_world_size = role_sizes[node.join.role];
    start.node_addr = address_of(node, node, rendezvous);
    start.master_node_addr = address_of(master, node, rendezvous);
    if (job.settings.store == StoreMode::kProxy) {
      start.master_addr = kProxyAddr;
      start.master_port = node.join.store_port;
      start.serve_store = true;
    } else if (!is_static(job.settings)) {
      start.master_addr = start.master_node_addr;
      start.master_port = master.join.store_port;
      start.serve_store = rank == 0;
    }
    first_global_rank += num_workers(node);
    next_role_rank[node.join.role] += num_workers(node);
    messages.emplace(node.id, std::move(start));
  }
  return messages;
}

}  // namespace ddprun::membership
