// SPDX-License-Identifier: Apache-2.0
// The communicator that needs no GPU: shared memory inside a node, TCP between nodes, hierarchical
// if it uses both (docs/host-communicator.md).
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/rank_group.h"

namespace ddprun::host {

struct HostCommunicatorOptions {
  int rank = 0;
  int size = 1;
  int node_rank = 0;  // GROUP_RANK: ranks with the same value share memory (never the host name)
  std::string node_addr;   // DDPRUN_NODE_ADDR: its address for other nodes; unused with one node
  std::string key_prefix;  // starts this communicator's keys; fresh for each communicator and round

  std::chrono::milliseconds timeout = kDefaultTimeout;       // default deadline of each operation
  std::chrono::milliseconds init_timeout = kDefaultTimeout;  // until all ranks have joined

  int sockets_per_neighbour = 2;                     // between nodes; the same on every rank
  std::size_t chunk_bytes = std::size_t{256} << 10;  // pipeline unit between nodes; same on all

  // Any thread may call: calls begin one at a time, and while one waits others begin. False: one of
  // two threads that call at the same time is refused.
  bool several_threads = false;

  // Counts operations; shared with the session. Null: they are not counted.
  std::shared_ptr<WorkerProgress> progress{};

  // The ranks of a split() meet here, on the caller's thread. Shared with the session. Null:
  // split() throws Error(kInvalidArgument).
  std::shared_ptr<store::Store> split_store{};
  RankGroup group{};  // this communicator's ranks, if it comes from a split
};

// Collective over the `size` ranks that share `key_prefix`. Ranks meet through `store`, which is
// not used after the return (its time-out is restored). Numbers of ranks per node may differ.
//
// Throws Error(kInvalidArgument) for options that can't be, and Error(kTimeout) naming the ranks
// that did not come. Throws Error(kPeerLost) if one died meanwhile, and Error(kUnavailable) if a
// node can't be reached.
std::unique_ptr<Communicator> make_host_communicator(store::Store& store,
                                                     const HostCommunicatorOptions& options);

}  // namespace ddprun::host
