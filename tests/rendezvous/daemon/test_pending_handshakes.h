// SPDX-License-Identifier: Apache-2.0
// PendingHandshakes with their addresses, without a network.
#pragma once

#include <fcntl.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstring>
#include <string>

#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/pending_handshakes.h"

namespace ddprun::rendezvous::testing {

inline SocketAddress address(const std::string& text) {
  const boost::asio::ip::tcp::endpoint endpoint(boost::asio::ip::make_address(text), 1);
  SocketAddress made;
  made.length = static_cast<socklen_t>(endpoint.size());
  std::memcpy(&made.storage, endpoint.data(), endpoint.size());
  return made;
}

// Some descriptor, the lowest free one.
inline UniqueFd any_connection() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

inline Newcomer admit(PendingHandshakes& all, const std::string& from) {
  UniqueFd none;
  return all.admit(address(from), none).value();
}

}  // namespace ddprun::rendezvous::testing
