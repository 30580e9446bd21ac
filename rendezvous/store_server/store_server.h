// SPDX-License-Identifier: Apache-2.0
// Serves one c10d key space to any number of connections. I/O thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/unique_fd.h"
#include "rendezvous/store/store_state.h"

namespace ddprun::store {

// Carries out a StoreServer's requests: a StoreState here, or a store elsewhere (StoreProxy).
class Backend {
 public:
  virtual ~Backend() = default;

  // Estimate the work of step(), in units of Outcome::work; 0: the work is done elsewhere.
  // work_for_waits_of() is the part that arises because clients wait for the request's keys.
  virtual std::size_t work_of(ConnectionId from, const Request& request) const = 0;
  virtual std::size_t work_for_waits_of(const Request& request) const = 0;

  // Carries out a request; `bytes` are its encoding. Replies may come later (StoreServer::reply()).
  // The reference is valid until the next call.
  virtual const Outcome& step(ConnectionId from, const Request& request,
                              std::string_view bytes) = 0;
  virtual const Outcome& disconnect(ConnectionId connection) = 0;

  // Returns false if no request can be taken now; StoreServer::resume() follows.
  virtual bool has_room() const = 0;

  virtual std::size_t num_keys() const = 0;
  virtual std::size_t content_bytes() const = 0;  // keys and values
  virtual std::size_t total_bytes() const = 0;    // counted against the server's limit
};

// Returns 4 GiB, or a quarter of the memory that this process may use if that is less.
std::size_t default_store_bytes();

struct StoreServerOptions {
  // The limit for keys, values, waits and buffers (docs/store.md).
  std::size_t max_total_bytes = default_store_bytes();
  std::chrono::milliseconds handshake_timeout{60'000};  // for VALIDATE; later clients may be idle
  std::chrono::milliseconds stall_timeout{60'000};  // of a client that reads no byte of its replies
  std::string name = "store";                       // for log lines
  // If set, processes of other users are refused. Only for loopback, where a connection's user is
  // known.
  std::optional<uid_t> only_user;
};

struct StoreServerStats {
  std::size_t num_connections = 0;
  std::size_t num_keys = 0;
  std::size_t content_bytes = 0;
  std::uint64_t num_requests = 0;
  std::size_t num_slow_readers = 0;  // whose replies had to wait in the last seconds
};

// One key space. It begins empty. Its destruction drops the content and closes every connection.
//
// The server closes the connection of a client that breaks the protocol, exceeds a limit or doesn't
// read its replies. One log line has its address and the reason. Other clients aren't affected. The
// constructor raises this process' soft limit of open descriptors to the hard one.
class StoreServer {
 public:
  // `backend` has the key space and must outlive this; null: the server has its own.
  StoreServer(boost::asio::io_context& io, StoreServerOptions options, Backend* backend = nullptr);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Accepts connections from `listener` (bound, listening, non-blocking) until destroyed. If
  // descriptors run out, it pauses, logs that once, and goes on later. May be called for several
  // listeners. With `is_for_loopback` it closes connections from other machines, whatever address
  // the listener has.
  void listen(UniqueFd listener, bool is_for_loopback = false);

  // Takes a connection that the caller accepted. The caller may have peeked at its bytes
  // (MSG_PEEK), but read none.
  void adopt(UniqueFd connection);

  StoreServerStats stats() const;

  // ---- for a backend whose answers come later; not called from inside the backend's calls ----
  // Both ignore connections that are unknown or have ended.
  void reply(ConnectionId to, std::string_view bytes);
  void refuse(ConnectionId connection, const std::string& reason);
  // Called when the backend has room again.
  void resume();

  // Calls `unused` once, from the I/O context, when there is no connection. It isn't called after
  // the destruction.
  void when_unused(std::function<void()> unused);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // pending handlers have a weak pointer
};

}  // namespace ddprun::store
