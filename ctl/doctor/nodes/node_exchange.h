// SPDX-License-Identifier: Apache-2.0
// The nodes of a job tell each other, over the round's store, what they see. Rank 0 decides the
// next step and gathers the answers. A node that doesn't answer in time is left out.
// docs/doctor.md.
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
  Endpoint store;       // the round's store
  std::string address;  // numeric: peers reach this node at it
  std::string round;    // a part of the keys' names, which keeps rounds apart
};

// Reads the place from the environment. nullopt: ddprun did not start this process as a worker.
// Throws Error(kInvalidArgument) if the variables make no sense.
std::optional<Place> find_place(const Environment& environment);

struct ExchangeOptions {
  Deadline deadline;  // for the whole exchange
  PairLimits pair;
  // A result worse than these is measured again: see pairs_to_repeat().
  double slow_factor = 0, least_bits_per_second = 0;
  bool measures_pairs = true, looks_up_names = true;  // false: no check wants it
};

// Runs the part of node rank 0: collects the answers of all nodes. `sheet` comes without its port.
// Throws Error if the store can't be used.
NodesFacts gather_nodes(store::Store& store, const Place& place, NodeSheet sheet,
                        const ExchangeOptions& options);

// Runs the part of the other nodes. Returns when rank 0 has all that it wants. Throws
// Error(kTimeout) if rank 0 stays silent.
void answer_rank_0(store::Store& store, const Place& place, NodeSheet sheet,
                   const ExchangeOptions& options);

// Each rank tries the collectives in a ddprun-check: a library that crashes ends only that program,
// and the report is still written.

// Parses lines such as "host 67108864 12000000" and "nccl failed: …". Ignores other lines. Pure.
std::vector<RankCollective> parse_collectives(const std::string& text);

// Called on rank 0 after all other checks. Lets all ranks begin, unless `reason_against` says why
// not. Puts their results into `facts`. Throws Error if the store can't be used.
void lead_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      const std::string& reason_against, Deadline deadline, NodesFacts& facts);

// Called on every other rank: waits for rank 0, at most until some seconds after the deadline, then
// takes part.
void join_collectives(store::Store& store, const Place& place, std::uint64_t num_bytes,
                      Deadline deadline);

}  // namespace ddprun::doctor
