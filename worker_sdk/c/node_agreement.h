// SPDX-License-Identifier: Apache-2.0
// Which ranks share a machine's memory, where no launcher says it.
#pragma once

#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/worker_env.h"

namespace ddprun::c {

struct NodePlace {
  int node_rank = 0;    // the same on ranks that can share memory
  std::string address;  // where other nodes reach this one; empty: not known
};

// Collective over the `size` ranks that share `key_prefix`. Ranks are of one node where the boot of
// the machine, the network namespace and GROUP_RANK (where it is set) are the same. Throws the
// store's errors; Error(kTimeout) names ranks that did not come.
NodePlace agree_on_nodes(store::Store& store, const std::string& key_prefix, int rank, int size,
                         const EnvLookup& environment);

}  // namespace ddprun::c
