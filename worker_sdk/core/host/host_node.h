// SPDX-License-Identifier: Apache-2.0
// All that connects one rank to the others, made in order of need: records in the store, the node's
// memory, the watcher, TCP between nodes. It is destroyed in the reverse order.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "rendezvous/store/store.h"
#include "worker_sdk/core/host/bootstrap.h"
#include "worker_sdk/core/host/collectives.h"
#include "worker_sdk/core/host/greeter.h"
#include "worker_sdk/core/host/host_communicator.h"
#include "worker_sdk/core/host/node_group.h"
#include "worker_sdk/core/host/peer_watcher.h"
#include "worker_sdk/core/host/ring.h"
#include "worker_sdk/core/host/shared_memory.h"

namespace ddprun::host {

class Mailboxes;
class MessageLinks;

// A message that waits to be received.
struct MessageFront {
  std::uint64_t size_bytes = 0;
  std::int32_t tag = 0;
  DType dtype = DType::kUInt8;
};

class HostNode {
 public:
  // Collective, for size > 1. Throws what make_host_communicator throws.
  HostNode(store::Store& store, const HostCommunicatorOptions& options);
  // No operation may be under way.
  ~HostNode();

  NodeGroup& group() { return *group_; }
  Collectives& collectives() { return *collectives_; }

  // True if every rank has a node of its own, so that all meet in one ring.
  bool is_alone_on_its_node() const {
    return group_->topology().num_nodes() > 1 && group_->topology().max_ranks_per_node() == 1;
  }

  // The communicator's operations besides Collectives; blocking. One send and one receive per peer
  // at a time; different peers and directions may use different threads.
  std::unique_ptr<CommBuffer> allocate(const Call& call, std::size_t size_bytes);
  void send(const Call& call, const TensorView& buffer, int peer, int tag);
  // Returns the next message of `peer`; nullopt: none has come in a short while. The message stays
  // until take_message() puts its `size_bytes` at `to`.
  std::optional<MessageFront> await_message(const Call& call, int peer);
  void take_message(const Call& call, void* to, int peer);
  // Ends the waits for messages with kAborted, before their threads are joined.
  void stop_receiving() { stops_receiving_.store(true); }

 private:
  void throw_if_receiving_stops() const;
  void begin(store::Store& store, const HostCommunicatorOptions& options, StartWatch& watch,
             const Call& start);
  void join_node(const std::vector<PeerRecord>& records, int rank, UniqueFd unix_listener,
                 StartWatch& watch, const Call& start);
  void start_watching(const std::vector<PeerRecord>& records, std::unique_ptr<Greeter> greeter,
                      const Call& start);
  // Makes a memfd that all ranks of the node have afterwards.
  UniqueFd share_memory(const Call& call, std::size_t size_bytes);
  // Opens TCP to the neighbouring nodes: control between first ranks, a ring for each carrier.
  std::unique_ptr<Ring> join_rings(const std::vector<PeerRecord>& records,
                                   const HostCommunicatorOptions& options, StartWatch& watch,
                                   const Call& start);

  std::atomic<bool> stops_receiving_{false};
  UniqueFd tcp_listener_;  // used until there is a greeter
  ArrivalBook arrivals_;
  NodeConnections connections_;
  std::unique_ptr<NodeGroup> group_;
  std::unique_ptr<NodeSteps> steps_;
  std::unique_ptr<PeerWatcher> watcher_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Mailboxes> mailboxes_;
  std::unique_ptr<MessageLinks> links_;  // null with one node
  std::unique_ptr<Collectives> collectives_;
};

}  // namespace ddprun::host
