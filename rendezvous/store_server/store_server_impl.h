// SPDX-License-Identifier: Apache-2.0
// The inside of StoreServer. io thread only.
//
// All sockets are in one level-triggered epoll set of the server's own, and only that set's
// descriptor is known to Asio: a wake-up takes a batch of events with one call, where Asio's own
// sockets would cost an epoll_ctl or a fruitless recv per request.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "rendezvous/store_server/backend.h"
#include "rendezvous/store_server/connection.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::store {

class StoreServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  // `backend`: null: a key space of its own.
  Impl(boost::asio::io_context& io, StoreServerOptions options, Backend* backend);

  // Once, after construction.
  void start() { await_events(); }
  void listen(UniqueFd listener);
  void adopt(UniqueFd connection);
  StoreServerStats stats() const;
  void when_unused(std::function<void()> unused);
  void reply(ConnectionId to, std::string_view bytes);
  void refuse(ConnectionId connection, const std::string& reason);
  void resume();

 private:
  // Names a connection for later, when it may have gone and its descriptor be another's.
  struct Handle {
    int fd = -1;
    std::uint32_t generation = 0;
    Clock::time_point since;
  };

  // ---- events ----
  void await_events();
  void take_events();
  void on_listener(std::size_t index);
  void on_readable(Connection& connection);
  void on_writable(Connection& connection);

  // ---- connections ----
  bool is_welcome(int fd);
  void add_connection(UniqueFd fd, const SocketAddress& peer);
  Connection* find(int fd, std::uint32_t generation) const;
  // Closes at the end of the event. An empty reason: nothing to say.
  void close_later(Connection& connection, const std::string& reason);
  void close_marked();
  void say_if_unused();
  void update_interest(Connection& connection);
  void hold(Connection& connection);  // until the backend has room
  void account(Connection& connection);
  void pause_accepting(int error_number);
  void resume_accepting();

  // ---- requests and replies ----
  // Carries out the complete requests in `bytes` while the client takes the replies; the number of
  // bytes used.
  std::size_t consume(Connection& connection, std::string_view bytes);
  // `current`: whose replies are gathered in scratch_; may be null.
  void deliver(const Outcome& outcome, Connection* current);
  void send_gathered(Connection& connection, const SharedValue& body);
  void send(Connection& connection, std::string_view head, const SharedValue& body);

  // ---- timers ----
  void arm_sweep();
  void sweep();

  // Constant after construction.
  const StoreServerOptions options_;
  const RequestLimits limits_;

  const std::unique_ptr<LocalBackend> local_;  // null: it is elsewhere
  Backend& backend_;
  boost::asio::posix::stream_descriptor epoll_;
  boost::asio::steady_timer sweep_timer_;
  boost::asio::steady_timer accept_timer_;
  std::vector<UniqueFd> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;  // Index: descriptor = ConnectionId.
  std::vector<int> marked_;                               // To be closed by close_marked().
  std::deque<Handle> handshakes_;  // Oldest first; some have shaken hands or gone.
  std::vector<Handle> held_;       // Wait for the backend; some have gone.
  std::vector<Handle> stalled_;    // Were blocked; some read again or have gone.
  std::vector<char> buffer_;       // What recv() fills.
  std::string scratch_;            // Replies to the connection that is being served.
  Request request_;
  std::size_t num_connections_ = 0;
  std::function<void()> unused_;  // Set: somebody waits for the last connection's end.
  std::size_t buffered_bytes_ = 0;
  std::uint64_t num_requests_ = 0;
  std::uint32_t next_generation_ = 1;
  std::set<uid_t> refused_users_;  // were named in the log
  bool accepting_ = true;
  std::set<int> said_accept_errors_;
  bool sweeping_ = false;
};

}  // namespace ddprun::store
