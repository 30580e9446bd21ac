// SPDX-License-Identifier: Apache-2.0
// send and recv between ranks on different nodes: one TCP connection per pair, made when first
// needed (the lower rank connects). One send and one recv per peer at a time; different peers and
// directions from different threads.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "worker_sdk/core/host/bootstrap.h"
#include "worker_sdk/core/host/operation_io.h"

namespace ddprun::host {

class MessageLinks {
 public:
  MessageLinks(NodeGroup& group, ArrivalBook& arrivals, const Token& token,
               std::vector<Endpoint> endpoint_of);

  // Returns when the kernel has taken the data; the buffer is free.
  void send(const Call& call, const TensorView& buffer, int peer);
  // Throws Error(kProtocol) when the message has another size or dtype than `buffer`.
  void recv(const Call& call, const TensorView& buffer, int peer);

 private:
  struct Link {
    UniqueFd fd;
    bool being_made = false;
  };
  // A send and a recv may need the connection at once: one makes it, the other waits for it, each
  // to its own deadline.
  int socket_of(int peer, const Call& call);
  UniqueFd connect(int peer, const Call& call);

  // Constant after construction.
  NodeGroup& group_;
  ArrivalBook& arrivals_;
  const Token token_;
  const std::vector<Endpoint> endpoint_of_;

  std::mutex mutex_;
  std::condition_variable made_;
  std::map<int, Link> links_;  // guarded by mutex_; entries stay where they are
};

}  // namespace ddprun::host
