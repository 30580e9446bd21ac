// SPDX-License-Identifier: Apache-2.0
// Where queued gangs can begin (docs/nodes.md, "The rules of the queue"). Three ideas: a node is
// fitting for a gang if it would do, were nothing running; it has room if it does now; it is held
// if a gang that came earlier waits for it, and then no later one gets it. It decides nothing of
// what becomes of a gang, and changes none. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/gangs/gang_queue.h"

namespace ddprun::gangs {

class GangPlacing {
 public:
  using Node = GangQueue::Node;

  // Both outlive it, and may change meanwhile: what begins takes its slots at once.
  GangPlacing(const std::map<GangQueue::NodeKey, Node>& nodes,
              const std::map<std::uint64_t, GangQueue::Gang>& gangs)
      : nodes_(nodes), gangs_(gangs) {}

  // Taken of a node, by its name: by gangs of all users, and by what runs there and shall not.
  int used_slots(const std::string& name) const;

  // The fitting nodes, by name; those that are away, too.
  std::vector<const Node*> fitting(const GangState& gang) const;

  // Asked for each queued gang once, in the order of submission: the nodes to begin it on, the
  // first ones by name. nullopt: it waits; if enough nodes are fitting, it holds them from now on.
  std::optional<std::vector<const Node*>> place(const GangState& gang);

 private:
  bool has_room(const Node& node, const GangState& gang) const;

  const std::map<GangQueue::NodeKey, Node>& nodes_;
  const std::map<std::uint64_t, GangQueue::Gang>& gangs_;
  std::set<std::string> held_;  // names of nodes
};

}  // namespace ddprun::gangs
