// SPDX-License-Identifier: Apache-2.0
// Serves one c10d key space to any number of connections. io thread only.
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

  // About what step() will take, as Outcome::work counts it; 0: it takes it elsewhere. The second
  // one is what it takes because others wait for its keys.
  virtual std::size_t work_of(ConnectionId from, const Request& request) const = 0;
  virtual std::size_t work_for_waits_of(const Request& request) const = 0;

  // `bytes`: the request as it came. Replies may come later (reply()). The reference
  // holds until the next call.
  virtual const Outcome& step(ConnectionId from, const Request& request,
                              std::string_view bytes) = 0;
  virtual const Outcome& disconnect(ConnectionId connection) = 0;

  // False: no request can be taken now; StoreServer::resume() follows.
  virtual bool has_room() const = 0;

  virtual std::size_t num_keys() const = 0;
  virtual std::size_t content_bytes() const = 0;  // keys and values
  virtual std::size_t total_bytes() const = 0;    // what counts against the server's limit
};

// 4 GiB, or a quarter of what this process may use where that is less.
std::size_t default_store_bytes();

struct StoreServerOptions {
  // Keys, values, waits and buffers: docs/store.md.
  std::size_t max_total_bytes = default_store_bytes();
  std::chrono::milliseconds handshake_timeout{60'000};  // for VALIDATE; later a client may idle
  std::chrono::milliseconds stall_timeout{60'000};  // a client that takes no byte of its replies
  std::string name = "store";                       // for log lines
  // Set: processes of other users are refused. On loopback, where a connection's user is known.
  std::optional<uid_t> only_user;
};

struct StoreServerStats {
  std::size_t num_connections = 0;
  std::size_t num_keys = 0;
  std::size_t content_bytes = 0;
  std::uint64_t num_requests = 0;
  std::size_t num_slow_readers = 0;  // clients whose replies had to wait in the last seconds
};

// One key space. Created empty; its content dies with it. Destroying it closes every connection.
//
// A client that breaks the protocol, passes a limit or doesn't read its replies loses its
// connection. One log line names its address and the reason. Nobody else is disturbed. Constructing
// it raises this process' soft limit of open descriptors to the hard one.
class StoreServer {
 public:
  // `backend`: the key space is elsewhere; it outlives this.
  StoreServer(boost::asio::io_context& io, StoreServerOptions options, Backend* backend = nullptr);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Accepts from `listener` (bound, listening, non-blocking) until destroyed. Out of descriptors:
  // backs off, logs once, and goes on when there are some. May be called for several listeners.
  // `is_for_loopback`: closes connections from elsewhere, whatever it is bound to.
  void listen(UniqueFd listener, bool is_for_loopback = false);

  // Takes a connection that somebody else accepted, who may have peeked at it (MSG_PEEK) at most.
  void adopt(UniqueFd connection);

  StoreServerStats stats() const;

  // ---- for a backend whose answers come later; never from inside its own calls ----
  // Unknown connections, and those that have gone, are ignored.
  void reply(ConnectionId to, std::string_view bytes);
  void refuse(ConnectionId connection, const std::string& reason);
  // The backend has room again.
  void resume();

  // Calls `unused` once, from the io context, when there is no connection, unless destroyed before.
  void when_unused(std::function<void()> unused);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // Pending handlers hold it weakly.
};

}  // namespace ddprun::store
