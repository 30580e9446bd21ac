// SPDX-License-Identifier: Apache-2.0
// What a StoreServer does: takes its sockets' events, carries out the requests, sends the replies.
// io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/store/rate.h"
#include "rendezvous/store/request.h"
#include "rendezvous/store_server/backend.h"
#include "rendezvous/store_server/client_deadlines.h"
#include "rendezvous/store_server/connection.h"
#include "rendezvous/store_server/connection_table.h"
#include "rendezvous/store_server/event_set.h"
#include "rendezvous/store_server/listeners.h"
#include "rendezvous/store_server/local_backend.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::store {

// Pending handlers hold it weakly, so that it ends with its StoreServer, whose calls these are.
class EventLoop : public std::enable_shared_from_this<EventLoop> {
 public:
  // `backend`: null: a key space of its own.
  EventLoop(boost::asio::io_context& io, StoreServerOptions options, Backend* backend);

  // Once, after construction.
  void await_events();

  void listen(UniqueFd listener, bool is_for_loopback);
  void adopt(UniqueFd connection);
  StoreServerStats stats() const;
  void reply(ConnectionId to, std::string_view bytes);
  void refuse(ConnectionId id, const std::string& reason);
  void resume();
  void when_unused(std::function<void()> unused);

 private:
  // ---- events ----
  void take_events();
  void on_listener(std::size_t index);
  void on_readable(Connection& connection);
  void on_writable(Connection& connection);

  // ---- connections ----
  void add_connection(UniqueFd fd, const SocketAddress& peer);
  // Closes at the end of the event. An empty reason: nothing to say.
  void close_later(Connection& connection, const std::string& reason);
  void close_marked();
  void say_if_unused();
  void update_interest(Connection& connection);
  void account(Connection& connection);
  void resume_accepting();

  // ---- those that wait to go on ----
  // Reads nothing from it until go_on().
  void hold(Connection& connection, std::deque<Handle>& list);
  // The first of them.
  void go_on(std::deque<Handle>& list);
  void go_on_later();
  // False: one more large request may come.
  bool wait_if_large(Connection& connection);
  // The large requests that the rate allows by now.
  void go_on_with_large();
  void wait_for_large();

  // ---- requests and replies ----
  // Carries out the complete requests in `bytes` while the client takes the replies; bytes used.
  std::size_t consume(Connection& connection, std::string_view bytes);
  // `current`: whose replies are gathered in scratch_; may be null.
  void deliver(const Outcome& outcome, Connection* current);
  void send_gathered(Connection& connection, const SharedValue& body);
  void send(Connection& connection, std::string_view head, const SharedValue& body);

  // ---- time ----
  void arm_deadlines();
  void check_deadlines();
  // Calls `then` after `delay`, if this is there then.
  void call_after(boost::asio::steady_timer& timer, Clock::duration delay,
                  void (EventLoop::*then)());

  // Constant after construction.
  const StoreServerOptions options_;
  const RequestLimits limits_;

  boost::asio::io_context& io_;
  const std::unique_ptr<LocalBackend> local_;  // null: it is elsewhere
  Backend& backend_;
  EventSet events_;
  boost::asio::steady_timer deadline_timer_;
  boost::asio::steady_timer large_timer_;
  boost::asio::steady_timer accept_timer_;
  Listeners listeners_;
  ConnectionTable connections_;
  ClientDeadlines deadlines_;
  std::vector<ConnectionId> marked_;  // To be closed by close_marked().
  // Those that are held, and some that have gone since.
  std::deque<Handle> without_room_;  // The backend has no room.
  std::deque<Handle> resting_;       // They had their turn, and more requests of theirs are here.
  std::deque<Handle> large_;         // Their next request is large, the longest wait first.
  Rate large_rate_{kLargeWorkPerSecond};
  bool waits_for_large_ = false;     // on large_timer_
  bool waits_for_deadline_ = false;  // on deadline_timer_
  bool will_go_on_ = false;          // with those that are resting
  std::vector<char> buffer_;         // For recv().
  std::string scratch_;              // Replies to the connection that is being served.
  Request request_;
  std::function<void()> unused_;  // Set: somebody waits for the last connection's end.
  std::size_t buffered_bytes_ = 0;
  std::uint64_t num_requests_ = 0;
};

}  // namespace ddprun::store
