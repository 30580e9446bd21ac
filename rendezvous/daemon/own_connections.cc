// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/own_connections.h"

#include <fcntl.h>

namespace ddprun::rendezvous {

void OwnConnections::listens_at(const SocketAddress& listener) { listeners_.push_back(listener); }

bool OwnConnections::await(int socket) {
  const SocketAddress peer = peer_address(socket);
  if (!is_local_address(peer)) return false;
  for (const SocketAddress& listener : listeners_) {
    const bool is_its = listener.port() == peer.port() &&
                        (listener.is_any() || listener.host_text() == peer.host_text());
    if (!is_its) continue;
    awaited_ = UniqueFd(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
    its_address_ = local_address(socket).text();
    its_peer_ = peer.text();
    return static_cast<bool>(awaited_);
  }
  return false;
}

bool OwnConnections::take(int accepted) {
  if (!awaited_ || peer_address(accepted).text() != its_address_ ||
      local_address(accepted).text() != its_peer_) {
    return false;
  }
  awaited_.reset();
  return true;
}

}  // namespace ddprun::rendezvous
