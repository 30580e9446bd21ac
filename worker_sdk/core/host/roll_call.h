// SPDX-License-Identifier: Apache-2.0
// Who is missing from a collective, asked of all nodes when a deadline has passed: a note
// (RollCallNote) goes once round the nodes' first ranks, and each adds its node's ranks that have
// not entered the call, or have made another one. Carried by PeerWatcher; here is what is written
// in it.
#pragma once

#include <cstdint>
#include <optional>

#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

// The note with which a rank of this node asks about the collective that it is in.
RollCallNote begin_roll_call(const NodeGroup& group, int local, std::uint32_t sequence);

// Adds this node's ranks.
void answer_roll_call(const NodeGroup& group, RollCallNote& note);

// The note is back: the rank that asked may read it. First rank's watcher thread only.
void post_roll_call(NodeGroup& group, const RollCallNote& note);

// What came back for this rank about this collective; nullopt while nothing did.
std::optional<RollCallNote> read_roll_call(const NodeGroup& group, std::uint32_t sequence);

}  // namespace ddprun::host
