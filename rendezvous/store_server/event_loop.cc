// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/event_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/text.h"
#include "rendezvous/store/request_parser.h"

namespace ddprun::store {
namespace {

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kGatherBytes = 64 << 10;      // Replies sent in one go.
constexpr std::size_t kCopiedBodyBytes = 16 << 10;  // Larger values are sent from the store.
constexpr std::size_t kKeptBytes = 1 << 20;         // Capacity of scratch_ between requests.
constexpr std::size_t kEventsPerCall = 256;
constexpr int kCallsPerWakeUp = 16;  // Then others on this io thread have their turn.
constexpr std::chrono::milliseconds kAcceptPause{100};

// Its next request, which is here.
bool wants_no_answer(const Connection& connection) {
  const auto opcode = static_cast<Opcode>(connection.input().front());
  return opcode == Opcode::kSet || opcode == Opcode::kMultiSet || opcode == Opcode::kAppend ||
         opcode == Opcode::kQueuePush;
}

}  // namespace

EventLoop::EventLoop(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
    : options_(std::move(options)),
      io_(io),
      local_(backend ? nullptr : std::make_unique<LocalBackend>(options_.max_total_bytes)),
      backend_(backend ? *backend : *local_),
      events_(io),
      deadline_timer_(io),
      large_timer_(io),
      accept_timer_(io),
      listeners_(events_, options_.name, options_.only_user),
      deadlines_(options_.handshake_timeout, options_.stall_timeout, connections_),
      buffer_(kReceiveBytes) {}

// ---- events ----

void EventLoop::await_events() {
  events_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const std::shared_ptr<EventLoop> self = weak.lock();
    if (!self || error) return;
    self->take_events();
    self->await_events();
  });
}

void EventLoop::take_events() {
  std::array<epoll_event, kEventsPerCall> room;
  for (int call = 0; call < kCallsPerWakeUp; ++call) {
    const std::span<const epoll_event> events = events_.take(room);
    if (events.empty()) return;
    for (const epoll_event& event : events) {
      const Handle handle = EventSet::handle_of(event);
      if (handle.generation == 0) {
        on_listener(static_cast<std::size_t>(handle.fd));
        continue;
      }
      Connection* connection = connections_.find(handle);
      if (!connection) continue;  // Closed by an earlier event of this batch.
      if (event.events & EPOLLOUT) on_writable(*connection);
      if (event.events & EPOLLIN) {
        if (!connection->closing) on_readable(*connection);
      } else if (event.events & EPOLLRDHUP && wants_no_answer(*connection)) {
        connection->is_large = false;  // it is carried out all the same
        update_interest(*connection);
      } else if (event.events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
        close_later(*connection, "");
      }
      if (!marked_.empty()) close_marked();
    }
  }
}

void EventLoop::on_listener(std::size_t index) {
  const int error = listeners_.accept(index, [this](UniqueFd fd, const SocketAddress& peer) {
    add_connection(std::move(fd), peer);
  });
  if (error == 0) return;
  listeners_.pause(error, connections_.size());
  call_after(accept_timer_, kAcceptPause, &EventLoop::resume_accepting);
}

void EventLoop::on_readable(Connection& connection) {
  if (!backend_.has_room()) return hold(connection, without_room_);
  const ssize_t received = ::recv(connection.fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (received < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) close_later(connection, "");
    return;
  }
  if (received == 0) {
    close_later(connection,
                connection.input().empty() ? "" : "it ended in the middle of a request");
    return;
  }
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(received));
  if (connection.input().empty()) {
    const std::size_t used = consume(connection, bytes);
    if (connection.closing || used == bytes.size()) return;
    connection.add_input(bytes.substr(used));
  } else {
    connection.add_input(bytes);
    connection.consume_input(consume(connection, connection.input()));
  }
  account(connection);
}

void EventLoop::on_writable(Connection& connection) {
  connection.begin_turn();
  if (!connection.flush()) {
    close_later(connection, "");
    return;
  }
  if (!connection.blocked() && !connection.held && !connection.input().empty()) {
    connection.consume_input(consume(connection, connection.input()));
  }
  account(connection);
  update_interest(connection);
}

// ---- connections ----

void EventLoop::listen(UniqueFd listener, bool is_for_loopback) {
  listeners_.add(std::move(listener), is_for_loopback);
}

void EventLoop::adopt(UniqueFd connection) {
  SocketAddress peer;
  try {
    peer = peer_address(connection.get());
  } catch (const Error&) {
    return;  // It has gone already.
  }
  ::fcntl(connection.get(), F_SETFL, ::fcntl(connection.get(), F_GETFL) | O_NONBLOCK);
  set_socket_options(connection.get());
  add_connection(std::move(connection), peer);
}

void EventLoop::add_connection(UniqueFd fd, const SocketAddress& peer) {
  auto added =
      std::make_unique<Connection>(std::move(fd), peer, connections_.next_generation(), limits_);
  added->interest = EPOLLIN;
  if (!events_.add(added->fd(), added->handle(), EPOLLIN)) {
    log_warning(options_.name, ": refused ", added->peer_text(), ": ", errno_text(errno));
    return;
  }
  const Connection& connection = *added;
  connections_.insert(std::move(added));
  deadlines_.await_handshake(connection, Clock::now());
  arm_deadlines();
}

void EventLoop::close_later(Connection& connection, const std::string& reason) {
  if (connection.closing) return;
  connection.closing = true;
  marked_.push_back(connection.id());
  if (!reason.empty()) {
    log_warning(options_.name, ": closed the connection of ", connection.peer_text(), ": ", reason);
  }
}

// Taking their waits out of the lists of all waits is work, so some connections close later.
void EventLoop::close_marked() {
  std::size_t work = 0;
  while (!marked_.empty() && work < kTurnWork) {
    const ConnectionId id = marked_.back();
    marked_.pop_back();
    buffered_bytes_ -= connections_.find(id)->accounted_bytes;
    connections_.erase(id);
    const Outcome& outcome = backend_.disconnect(id);
    work += outcome.work;
    deliver(outcome, nullptr);
  }
  if (!marked_.empty()) go_on_later();
  if (listeners_.is_paused()) resume_accepting();
  say_if_unused();
}

void EventLoop::when_unused(std::function<void()> unused) {
  unused_ = std::move(unused);
  say_if_unused();
}

void EventLoop::say_if_unused() {
  if (!unused_ || connections_.size() > 0) return;
  // Not now: the answer may be our end.
  boost::asio::post(io_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->unused_ || self->connections_.size() > 0) return;
    std::exchange(self->unused_, nullptr)();
  });
}

void EventLoop::update_interest(Connection& connection) {
  // While replies wait, requests wait too: TCP slows the client down.
  const std::uint32_t interest = connection.blocked()  ? EPOLLOUT
                                 : connection.is_large ? static_cast<std::uint32_t>(EPOLLRDHUP)
                                 : connection.held     ? 0
                                                       : static_cast<std::uint32_t>(EPOLLIN);
  if (connection.closing || interest == connection.interest) return;
  connection.interest = interest;
  events_.change(connection.fd(), connection.handle(), interest);
  if (connection.blocked()) {
    deadlines_.await_reading(connection);
    arm_deadlines();
  }
}

void EventLoop::account(Connection& connection) {
  const std::size_t before = connection.accounted_bytes;
  connection.accounted_bytes = connection.buffered_bytes();
  buffered_bytes_ += connection.accounted_bytes - before;
  const std::size_t total = buffered_bytes_ + backend_.total_bytes();
  if (connection.accounted_bytes > before && total > options_.max_total_bytes) {
    close_later(connection, concat("the store is full: with what is being received and sent it "
                                   "holds ",
                                   total, " bytes, the limit is ", options_.max_total_bytes));
  }
}

void EventLoop::resume_accepting() {
  accept_timer_.cancel();
  listeners_.resume();
}

StoreServerStats EventLoop::stats() const {
  return {.num_connections = connections_.size(),
          .num_keys = backend_.num_keys(),
          .content_bytes = backend_.content_bytes(),
          .num_requests = num_requests_,
          .num_slow_readers = deadlines_.num_slow_readers()};
}

// ---- those that wait to go on ----

void EventLoop::hold(Connection& connection, std::deque<Handle>& list) {
  if (connection.held || connection.closing) return;
  connection.held = true;
  list.push_back(connection.handle());
  update_interest(connection);
}

void EventLoop::go_on(std::deque<Handle>& list) {
  const Handle handle = list.front();
  list.pop_front();
  Connection* connection = connections_.find(handle);
  if (!connection || connection->closing) return;
  connection->held = connection->is_large = false;
  if (!connection->blocked()) {
    connection->consume_input(consume(*connection, connection->input()));
  }
  account(*connection);
  update_interest(*connection);
  close_marked();
}

// Others have their turn first, also on this io thread.
void EventLoop::go_on_later() {
  if (std::exchange(will_go_on_, true)) return;
  boost::asio::post(io_, [weak = weak_from_this()] {
    const std::shared_ptr<EventLoop> self = weak.lock();
    if (!self) return;
    self->will_go_on_ = false;
    if (!self->resting_.empty()) self->go_on(self->resting_);
    self->close_marked();
    if (!self->resting_.empty()) self->go_on_later();
  });
}

void EventLoop::resume() {
  for (std::size_t left = without_room_.size(); left > 0; --left) go_on(without_room_);
}

bool EventLoop::wait_if_large(Connection& connection) {
  if (large_rate_.allowed(Clock::now()) > 0) return false;
  connection.is_large = true;
  hold(connection, large_);
  wait_for_large();
  return true;
}

void EventLoop::go_on_with_large() {
  waits_for_large_ = false;
  while (!large_.empty() && large_rate_.allowed(Clock::now()) > 0) go_on(large_);
  wait_for_large();
}

void EventLoop::wait_for_large() {
  if (large_.empty() || std::exchange(waits_for_large_, true)) return;
  call_after(large_timer_, large_rate_.time_until_allowed(Clock::now()),
             &EventLoop::go_on_with_large);
}

// ---- requests and replies ----

std::size_t EventLoop::consume(Connection& connection, std::string_view bytes) {
  std::size_t used = 0, work = 0;
  connection.begin_turn();
  while (used < bytes.size() && !connection.closing && !connection.blocked()) {
    if (!backend_.has_room()) {
      hold(connection, without_room_);
      break;
    }
    if (work >= kTurnWork) {
      hold(connection, resting_);
      go_on_later();
      break;
    }
    const std::string_view rest_of_bytes = bytes.substr(used);
    ParseStatus status = connection.parser().parse(rest_of_bytes, &request_, kLargeWork - 1);
    if (status == ParseStatus::kLarge) {
      if (wait_if_large(connection)) break;
      status = connection.parser().parse(rest_of_bytes, &request_);
    }
    if (status == ParseStatus::kNeedMore) break;
    if (status == ParseStatus::kMalformed) {
      send_gathered(connection, nullptr);
      close_later(connection, connection.parser().error());
      return used;
    }
    const ConnectionId id = connection.id();
    const std::size_t asked = backend_.work_of(id, request_);
    if (asked >= kLargeWork && wait_if_large(connection)) break;
    const std::string_view request = bytes.substr(used, connection.parser().request_bytes());
    used += request.size();
    ++num_requests_;
    const Outcome& outcome = backend_.step(id, request_, request);
    work += outcome.work;
    if (asked >= kLargeWork) large_rate_.spend(asked, Clock::now());  // not what others waited for
    deliver(outcome, &connection);
    if (!outcome.close_reason.empty()) {
      send_gathered(connection, nullptr);
      close_later(connection, concat(opcode_name(request_.opcode), ": ", outcome.close_reason));
      return used;
    }
  }
  send_gathered(connection, nullptr);
  return used;
}

void EventLoop::deliver(const Outcome& outcome, Connection* current) {
  for (const Reply& reply : outcome.replies) {
    if (current && reply.to == current->id()) {
      scratch_ += reply.bytes;
      if (reply.body && (reply.body->size() > kCopiedBodyBytes || current->blocked())) {
        send_gathered(*current, reply.body);
      } else if (reply.body) {
        scratch_ += *reply.body;
      }
      if (scratch_.size() > kGatherBytes) send_gathered(*current, nullptr);
    } else if (Connection* other = connections_.find(reply.to)) {
      if (!other->closing) send(*other, reply.bytes, reply.body);
    }
  }
}

void EventLoop::reply(ConnectionId to, std::string_view bytes) {
  Connection* connection = connections_.find(to);
  if (!connection || connection->closing) return;
  send(*connection, bytes, nullptr);
  close_marked();
}

void EventLoop::refuse(ConnectionId id, const std::string& reason) {
  Connection* connection = connections_.find(id);
  if (!connection) return;
  close_later(*connection, reason);
  close_marked();
}

void EventLoop::send_gathered(Connection& connection, const SharedValue& body) {
  if (scratch_.empty() && !body) return;
  if (!connection.closing) send(connection, scratch_, body);
  scratch_.clear();
  if (scratch_.capacity() > kKeptBytes) scratch_.shrink_to_fit();
}

void EventLoop::send(Connection& connection, std::string_view head, const SharedValue& body) {
  if (!connection.send(head, body)) {
    close_later(connection, "");
  } else if (connection.blocked()) {
    account(connection);
    update_interest(connection);
  }
}

// ---- time ----

void EventLoop::arm_deadlines() {
  if (std::exchange(waits_for_deadline_, true)) return;
  call_after(deadline_timer_, deadlines_.interval(), &EventLoop::check_deadlines);
}

void EventLoop::check_deadlines() {
  waits_for_deadline_ = false;
  deadlines_.check(Clock::now(), [this](Connection& connection, const std::string& reason) {
    close_later(connection, reason);
  });
  close_marked();
  if (!deadlines_.is_empty()) arm_deadlines();
}

void EventLoop::call_after(boost::asio::steady_timer& timer, Clock::duration delay,
                           void (EventLoop::*then)()) {
  timer.expires_after(delay);
  timer.async_wait([weak = weak_from_this(), then](const boost::system::error_code& error) {
    const std::shared_ptr<EventLoop> self = weak.lock();
    if (self && !error) (self.get()->*then)();
  });
}

}  // namespace ddprun::store
