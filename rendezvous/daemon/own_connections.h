// SPDX-License-Identifier: Apache-2.0
// Connections of this very process to its own port: a ddprun that serves its job's rendezvous is an
// agent of it, too. Nobody is between the two ends, so they need no TLS, which costs a short job
// more than all the rest of its start. io thread only.
#pragma once

#include <string>
#include <vector>

#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun::rendezvous {

class OwnConnections {
 public:
  void listens_at(const SocketAddress& listener);

  // `socket`: a connected one of this process. True: it leads to one of the listeners, and its
  // other end is awaited, in place of that of an earlier call.
  bool await(int socket);

  // Whether `accepted` is the other end of the one that is awaited; true once.
  bool take(int accepted);

 private:
  std::vector<SocketAddress> listeners_;
  // As long as it is open no other process can have a connection of these two addresses.
  UniqueFd awaited_;
  std::string its_address_, its_peer_;
};

}  // namespace ddprun::rendezvous
