// SPDX-License-Identifier: Apache-2.0
// send and recv between two ranks of one node: a double-buffered mailbox in shared memory for each
// direction of each pair. One send and one recv per peer at a time; different peers and directions
// from different threads.
#pragma once

#include <vector>

#include "worker_sdk/core/host/call.h"
#include "worker_sdk/core/host/node_group.h"

namespace ddprun::host {

class Mailboxes {
 public:
  explicit Mailboxes(NodeGroup& group);

  // Returns when the receiver has taken all but the last kMailboxSlots pieces; the buffer is free.
  void send(const Call& call, const TensorView& buffer, int local_peer);
  // Throws Error(kProtocol) when the message has another size or dtype than `buffer`.
  void recv(const Call& call, const TensorView& buffer, int local_peer);

 private:
  NodeGroup& group_;
  // By peer: pieces so far, modulo 2^32 like the flags.
  std::vector<std::uint32_t> sent_;
  std::vector<std::uint32_t> received_;
};

// The text of a mismatch, the same for messages inside a node and between nodes.
std::string mismatch_text(const Call& call, std::uint64_t message_bytes, DType message_dtype,
                          int sender);

}  // namespace ddprun::host
