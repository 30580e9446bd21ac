// SPDX-License-Identifier: Apache-2.0
// How the nodes of a job tell each other what they see, over the round's store. Rank 0 says what is
// done next, and gathers; a node that doesn't answer in time is left out. docs/doctor.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/environment.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/peers.h"
#include "rendezvous/store/store.h"

namespace ddprun::doctor {

// The place of this process in a job, if ddprun started it as a worker.
struct Place {
  int local_rank = 0, node_rank = 0, num_nodes = 1;
  int global_rank = 0, world_size = 1;
  Endpoint store;       // of the round
  std::string address;  // numeric: this node, as peers reach it
  std::string round;    // tells the keys of this round from another's
};

// nullopt: no worker of ddprun's. Throws Error(kInvalidArgument) for one whose variables make no
// sense.
std::optional<Place> find_place(const Environment& environment);

struct ExchangeOptions {
  Deadline deadline;  // of all
  PairLimits pair;
  // A measurement that would be a finding is repeated: see pairs_to_repeat().
  double slow_factor = 0, least_bits_per_second = 0;
  bool measures_pairs = true, looks_up_names = true;  // what no check wants isn't done
};

// The part of node rank 0: collects everybody's answers. `sheet` without its port. Throws Error if
// the store can't be used.
NodesFacts gather_nodes(store::Store& store, const Place& place, NodeSheet sheet,
                        const ExchangeOptions& options);

// The part of the other nodes. Returns when rank 0 has what it wants. Throws Error(kTimeout) if
// nothing is heard of it.
void answer_rank_0(store::Store& store, const Place& place, NodeSheet sheet,
                   const ExchangeOptions& options);

// ddprun-check tries the collectives on each rank: a library that breaks ends only that program,
// not the report.

// "host 67108864 12000000" or "nccl failed: …", a line each; others are left out. Pure.
std::vector<RankCollective> parse_collectives(const std::string& text);

// For rank 0, when all else is done: all ranks begin, unless `reason_against` says why not. Their
// results go into `facts`. Throws Error if the store can't be used.
void lead_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      const std::string& reason_against, Deadline deadline, NodesFacts& facts);

// For every other rank: waits for rank 0, at most until the deadline and some seconds.
void join_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      Deadline deadline);

}  // namespace ddprun::doctor
