// SPDX-License-Identifier: Apache-2.0
// A node's end of a round's store in the rendezvous (docs/store-proxy.md). It is a c10d server on
// loopback. Its requests go over the agent's connection to the rendezvous, or wait for that. I/O
// thread only.
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

// The node's end of the two byte streams to a round's store in the rendezvous. Workers' requests
// become items of one stream. Items of the other stream become their replies. Pure.
class ProxyEnd {
 public:
  struct Handlers {
    // Gets the next bytes for a connection.
    std::function<void(ConnectionId, std::string_view bytes)> reply;
    // Called when the rendezvous takes no more requests from the connection, with the reason. The
    // owner then calls gone().
    std::function<void(ConnectionId, std::string reason)> refuse;
  };
  explicit ProxyEnd(Handlers handlers) : handlers_(std::move(handlers)) {}

  // Takes one whole request of a connection, but not VALIDATE, which the proxy handles itself.
  void request(ConnectionId from, std::string_view bytes);
  // Called when the connection has ended. Returns false if it never sent a request.
  bool gone(ConnectionId connection);
  // Returns false if no request may be added now.
  bool has_room() const {
    return streams_.out.unacknowledged_bytes() < OutgoingBytes::kWindowBytes;
  }
  // Returns the bytes of requests that the rendezvous has not acknowledged.
  std::size_t unacknowledged_bytes() const { return streams_.out.unacknowledged_bytes(); }

  // Called on a new connection to the rendezvous.
  void reconnect() { streams_.reconnect(); }
  // Takes a frame of this round from the rendezvous, and calls the handlers. Throws
  // Error(kProtocol).
  void received(const ProxyFrame& frame);
  // Returns the next message for the rendezvous; nullopt: there is nothing to send now.
  std::optional<std::string> next_frame(std::uint64_t round) {
    return streams_.next_frame(round, streams_.in.received());
  }

 private:
  void take(const ItemHead& head, std::string_view content, bool is_last);

  const Handlers handlers_;
  StreamEnd streams_;  // `out`: requests; `in`: replies
  ItemReader items_;
  std::string refusal_;  // the part that has come so far
  // A connection's id may be reused; its name (number) in the stream never is.
  std::unordered_map<ConnectionId, std::uint32_t> names_;
  std::unordered_map<std::uint32_t, ConnectionId> connections_;
  std::uint32_t next_name_ = 1;
};

class StoreProxy final : Backend {
 public:
  // `send` takes one message for the rendezvous. It is called only between linked() and unlinked(),
  // never from inside a call of this class.
  StoreProxy(boost::asio::io_context& io, StoreServerOptions options,
             std::function<void(std::string message)> send);
  StoreProxy(const StoreProxy&) = delete;
  StoreProxy& operator=(const StoreProxy&) = delete;

  // Serves `round` on `listener`. Called once.
  void serve(std::uint64_t round, UniqueFd listener);

  // See StoreServer.
  void when_unused(std::function<void()> unused) { server_.when_unused(std::move(unused)); }
  StoreServerStats stats() const { return server_.stats(); }

  // Called when a new connection to the rendezvous is ready. All unacknowledged bytes are sent
  // again.
  void linked();
  // Called when the connection has ended.
  void unlinked() { linked_ = false; }
  // Takes a message from the rendezvous; ignores one of another round. Throws Error(kProtocol).
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
  StoreServer server_;                                          // last: it uses the members above
};

}  // namespace ddprun::store
