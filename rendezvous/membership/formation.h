// SPDX-License-Identifier: Apache-2.0
// Chooses the next round's nodes, ranks and addresses. Pure functions of the job's state.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "rendezvous/membership/state.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// A topology label is a dotted path from the widest switch to the narrowest, "pod1.rack7"; nodes of
// one label are neighbours. Returns how many leading parts two labels share: 1 for "pod1.rack7" and
// "pod1.rack8"; 0 if one is empty.
int shared_levels(std::string_view a, std::string_view b);

// Returns whether `a` comes before `b` in rank order: by label, then by host name. Digits count as
// numbers ("gpu9" before "gpu10"). Labelled nodes come before the others.
bool stands_before(const Join& a, const Join& b);

// Returns the next round's nodes by node rank: at most settings.max_nodes of the placeable nodes.
// Members of the last round are chosen first, then nodes that asked for a node rank. Then each rank
// that lost its node gets the spare that shares most levels of its topology label. The others are
// chosen in join order. A member keeps its rank if that is below the number of nodes. Then each
// node with --node-rank gets that rank if it is free. A replacement has the rank that it was chosen
// for. The rest fill the free ranks by topology label, host name (stands_before) and join order. So
// the order of arrival doesn't matter if names or labels differ, and node rank 0 stays the same
// node.
std::vector<NodeId> choose_nodes(const JobState& job);

// Returns the StartRound of every node in `order` (index = node rank), by NodeId; `round` is its
// number. Global ranks are the prefix sums of num_workers. Each message has the addresses that its
// receiver can reach. A node that came over loopback is on the rendezvous' machine, so others reach
// it at the rendezvous' address.
std::map<NodeId, StartRound> start_messages(const JobState& job, const std::vector<NodeId>& order,
                                            std::uint64_t round);

}  // namespace ddprun::membership
