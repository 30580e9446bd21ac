// SPDX-License-Identifier: Apache-2.0
// The node's end of a round's store that lives in the rendezvous: requests of its workers'
// connections become items of one stream, and items of the other one their replies. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "rendezvous/store/proxy_frame.h"
#include "rendezvous/store/store_state.h"
#include "rendezvous/store/stream_end.h"

namespace ddprun::store {

class ProxyEnd {
 public:
  struct Handlers {
    // The next bytes for a connection.
    std::function<void(ConnectionId, std::string_view bytes)> reply;
    // The rendezvous takes nothing more from it, for this reason: gone() is to follow.
    std::function<void(ConnectionId, std::string reason)> refuse;
  };
  explicit ProxyEnd(Handlers handlers) : handlers_(std::move(handlers)) {}

  // One whole request of a connection; none of VALIDATE: that is answered here.
  void request(ConnectionId from, std::string_view bytes);
  // The connection has ended. False: it never asked for anything.
  bool gone(ConnectionId connection);
  // False: no request may be added now.
  bool has_room() const {
    return streams_.out.unacknowledged_bytes() < OutgoingBytes::kWindowBytes;
  }
  // Of requests.
  std::size_t unacknowledged_bytes() const { return streams_.out.unacknowledged_bytes(); }

  // A new connection to the rendezvous.
  void reconnect() { streams_.reconnect(); }
  // From the rendezvous, of this round. Calls the handlers. Throws Error(kProtocol).
  void received(const ProxyFrame& frame);
  // The next message for the rendezvous; nullopt: nothing is to be said now.
  std::optional<std::string> next_frame(std::uint64_t round) {
    return streams_.next_frame(round, streams_.in.received());
  }

 private:
  void take(const ItemHead& head, std::string_view content, bool is_last);

  const Handlers handlers_;
  StreamEnd streams_;  // `out`: requests; `in`: replies
  ItemReader items_;
  std::string refusal_;  // as far as it has come
  // A connection's id may be used again; a name never is.
  std::unordered_map<ConnectionId, std::uint32_t> names_;
  std::unordered_map<std::uint32_t, ConnectionId> connections_;
  std::uint32_t next_name_ = 1;
};

}  // namespace ddprun::store
