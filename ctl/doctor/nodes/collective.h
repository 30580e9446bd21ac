// SPDX-License-Identifier: Apache-2.0
// The collectives of all ranks, tried by ddprun-check on each: a library that breaks takes that
// program with it, and not what is said of it. docs/doctor.md.
#pragma once

#include <string>
#include <vector>

#include "common/clock.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/place.h"
#include "rendezvous/store/store.h"

namespace ddprun::doctor {

// "host 67108864 12000000" or "nccl failed: …", a line each; others are left out. Pure.
std::vector<RankCollective> parse_collectives(const std::string& text);

// Of rank 0, when all else is done: all ranks begin, unless `reason_against` says why not; what
// they found goes into `facts`. Throws Error where the store can't be used.
void lead_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      const std::string& reason_against, Deadline deadline, NodesFacts& facts);

// Of every other rank: waits for rank 0, at most until the deadline and some seconds.
void join_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      Deadline deadline);

}  // namespace ddprun::doctor
