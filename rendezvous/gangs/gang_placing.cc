// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gangs/gang_placing.h"

#include <algorithm>
#include <cstddef>

namespace ddprun::gangs {

int GangPlacing::used_slots(const std::string& name) const {
  int used = 0;
  for (auto node = nodes_.lower_bound({name, ""}); node != nodes_.end(); ++node) {
    if (node->first.first != name) break;
    for (const auto& [gang, slots] : node->second.strays) used += slots;
  }
  for (const auto& [number, gang] : gangs_) {
    for (const GangPart& part : gang.state.parts) {
      if (part.node == name && !part.is_over()) used += part.slots;
    }
  }
  return used;
}

std::vector<const GangPlacing::Node*> GangPlacing::fitting(const GangState& gang) const {
  std::vector<const Node*> found;
  for (const auto& [key, node] : nodes_) {
    if (node.owner == gang.owner && node.slots >= std::max(1, gang.slots)) found.push_back(&node);
  }
  return found;
}

bool GangPlacing::has_room(const Node& node, const GangState& gang) const {
  if (!node.connection) return false;
  const int used = used_slots(node.name);
  return gang.slots == 0 ? used == 0 : node.slots - used >= gang.slots;
}

std::optional<std::vector<const GangPlacing::Node*>> GangPlacing::place(const GangState& gang) {
  const auto candidates = fitting(gang);
  const auto least = static_cast<std::size_t>(gang.min_nodes);
  if (candidates.size() < least) return std::nullopt;
  std::vector<const Node*> ready;
  for (const Node* node : candidates) {
    if (!held_.contains(node->name) && has_room(*node, gang)) ready.push_back(node);
  }
  if (ready.size() < least) {
    for (const Node* node : candidates) held_.insert(node->name);
    return std::nullopt;
  }
  ready.resize(std::min(ready.size(), static_cast<std::size_t>(gang.max_nodes)));
  return ready;
}

}  // namespace ddprun::gangs
