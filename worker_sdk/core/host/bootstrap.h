// SPDX-License-Identifier: Apache-2.0
// How the ranks of a new communicator meet: records through the store, then unix sockets inside
// each node over which its first rank hands out the node's memory. Runs once, in the constructor.
#pragma once

#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/unique_fd.h"
#include "rendezvous/store/store.h"
#include "worker_sdk/core/host/greeter.h"
#include "worker_sdk/core/host/host_communicator.h"
#include "worker_sdk/core/host/start_watch.h"
#include "worker_sdk/core/host/topology.h"

namespace ddprun::host {

// What a rank tells the others.
struct PeerRecord {
  int node_rank = 0;
  std::string unix_name;  // abstract unix socket
  Endpoint endpoint;      // TCP; port 0: none
  Token token{};          // rank 0's counts
  int pid = 0;            // 0: not known
  std::uint64_t pid_namespace = 0;

  std::string encode() const;
  // Throws Error(kProtocol).
  static PeerRecord decode(const std::string& text, int rank);
};

// An abstract unix socket of a random name, listening. It vanishes with its descriptor.
UniqueFd listen_on_unix(std::string* name);

// Publishes `own` and returns every rank's record. Throws Error(kTimeout) naming the ranks that
// did not come; finding them out takes up to two seconds more.
std::vector<PeerRecord> exchange_records(store::Store& store,
                                         const HostCommunicatorOptions& options,
                                         const PeerRecord& own, Deadline deadline);

// A rank's unix connections inside its node. Member: one of each kind, to the first rank. First
// rank: one of each kind to every local index (its own entry is empty).
struct NodeConnections {
  std::vector<UniqueFd> watch;
  std::vector<UniqueFd> memory;
};

// First rank: waits for every member. Throws Error(kTimeout) naming the missing ones, and what
// `watch` knows.
NodeConnections accept_members(UniqueFd listener, const Token& token, const Topology& topology,
                               StartWatch& watch, Deadline deadline);
// Member: connects to the first rank. Throws Error(kTimeout), and what `watch` knows.
NodeConnections connect_to_first(const std::string& unix_name, const Token& token,
                                 const Topology& topology, StartWatch& watch, Deadline deadline);

// Hands memory to one member / to every member / takes it from the first rank. Throws
// Error(kPeerLost) when the other side is gone, Error(kTimeout).
void hand_memory(int connection, int memory_fd, int rank, Deadline deadline);
void send_memory(const NodeConnections& connections, int memory_fd, const Topology& topology,
                 Deadline deadline);
UniqueFd receive_memory(const NodeConnections& connections, const Topology& topology,
                        Deadline deadline);

}  // namespace ddprun::host
