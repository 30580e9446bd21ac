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
// one label are neighbours.
// How many leading parts two labels have in common: 1 for "pod1.rack7" and "pod1.rack8"; 0 where
// one of them is empty.
int shared_levels(std::string_view a, std::string_view b);

// Whether `a` comes before `b` in rank order: by label, then by host name. Digits count as numbers
// ("gpu9" before "gpu10"). Labelled nodes come before the others.
bool stands_before(const Join& a, const Join& b);

// The next round's nodes by node rank: at most settings.max_nodes of the placeable ones. Members of
// the last round are chosen first, then nodes that asked for a node rank. Then each rank that lost
// its node gets the spare that shares most levels of its topology label. The others come by join
// order. A member keeps its rank while that is below the number of nodes. Then each --node-rank
// gets its wish if it is free. A replacement has the rank that it was chosen for. The rest fill the
// holes by topology label, host name (stands_before), join order. So the order of arrival doesn't
// matter where names or labels differ, and node rank 0 stays the same node.
std::vector<NodeId> choose_nodes(const JobState& job);

// The StartRound of every node in `order` (index = node rank), by NodeId; `round` is its number.
// Global ranks are the prefix sums of num_workers. Addresses are as each receiver reaches them. A
// node that came over loopback sits beside the rendezvous, so others reach it at the rendezvous'
// address.
std::map<NodeId, StartRound> start_messages(const JobState& job, const std::vector<NodeId>& order,
                                            std::uint64_t round);

}  // namespace ddprun::membership
