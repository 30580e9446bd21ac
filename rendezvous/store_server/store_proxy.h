// SPDX-License-Identifier: Apache-2.0
// A node's end of a round's store in the rendezvous (docs/store-proxy.md). It is a c10d server on
// loopback, whose requests go over the agent's connection, or wait for it. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/unique_fd.h"
#include "rendezvous/store/byte_stream.h"
#include "rendezvous/store/store_state.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::store {

// The node's end of a round's store that lives in the rendezvous. Requests of its workers'
// connections become items of one stream. Items of the other stream become their replies. Pure.
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
  // Requests' bytes that the rendezvous has not acknowledged.
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

class StoreProxy final : Backend {
 public:
  // `send` takes one message for the rendezvous; it is called while there is a connection to it,
  // never from inside a call of this class. Not linked yet.
  StoreProxy(boost::asio::io_context& io, StoreServerOptions options,
             std::function<void(std::string message)> send);
  StoreProxy(const StoreProxy&) = delete;
  StoreProxy& operator=(const StoreProxy&) = delete;

  // Serves `round` on `listener`. Once.
  void serve(std::uint64_t round, UniqueFd listener);

  // As StoreServer's.
  void when_unused(std::function<void()> unused) { server_.when_unused(std::move(unused)); }
  StoreServerStats stats() const { return server_.stats(); }

  // The rendezvous knows this node on a new connection: what it has not acknowledged goes again.
  void linked();
  // The connection has ended.
  void unlinked() { linked_ = false; }
  // From the rendezvous; another round's is ignored. Throws Error(kProtocol).
  void received(std::string_view message);

 private:
  const Outcome& step(ConnectionId from, const Request& request, std::string_view bytes) override;
  const Outcome& disconnect(ConnectionId connection) override;
  std::size_t work_of(ConnectionId, const Request&) const override { return 0; }
  std::size_t work_for_waits_of(const Request&) const override { return 0; }
  bool has_room() const override { return end_.has_room(); }
  std::size_t num_keys() const override { return 0; }
  std::size_t content_bytes() const override { return 0; }
  std::size_t total_bytes() const override { return end_.unacknowledged_bytes(); }
  void flush_later();

  boost::asio::io_context& io_;
  std::uint64_t round_ = 0;
  const std::function<void(std::string)> send_;
  const Outcome nothing_;
  ProxyEnd end_;
  bool linked_ = false;
  bool flushing_ = false;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for a flush that outlives this
  StoreServer server_;                                          // last: it refers to this
};

}  // namespace ddprun::store
