// SPDX-License-Identifier: Apache-2.0
// How the nodes of a job tell each other what they see, over the round's store. Rank 0 says what is
// done next, and gathers; a node that doesn't answer in time is left out. docs/doctor.md.
#pragma once

#include <chrono>
#include <string>

#include "common/clock.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/peer_client.h"
#include "ctl/doctor/nodes/place.h"
#include "rendezvous/store/store.h"

namespace ddprun::doctor {

struct ExchangeOptions {
  Deadline deadline;  // of all
  PairLimits pair;
  // What would be a finding is measured again: see pairs_to_repeat().
  double slow_factor = 0, least_bits_per_second = 0;
  bool measures_pairs = true, looks_up_names = true;  // what no check wants isn't done
};

// This node's part, of node rank 0: everybody's answers. `sheet` without its port. Throws Error
// where the store can't be used.
NodesFacts gather_nodes(store::Store& store, const Place& place, NodeSheet sheet,
                        const ExchangeOptions& options);

// Of the others. Returns when rank 0 has what it wants. Throws Error(kTimeout) where nothing is
// heard of it.
void answer_rank_0(store::Store& store, const Place& place, NodeSheet sheet,
                   const ExchangeOptions& options);

}  // namespace ddprun::doctor
