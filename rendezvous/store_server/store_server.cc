// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "common/cgroup_limits.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/store/rate.h"
#include "rendezvous/store_server/connection.h"
#include "rendezvous/store_server/file_limit.h"
#include "rendezvous/store_server/in_turns.h"
#include "rendezvous/store_server/listeners.h"

namespace ddprun::store {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kGatherBytes = 64 << 10;      // replies sent in one call
constexpr std::size_t kCopiedBodyBytes = 16 << 10;  // larger values aren't copied
constexpr std::size_t kKeptBytes = 1 << 20;         // of scratch_ between requests
// So many bytes, received or freed with their connection, are as much work as a look-up, also
// before their request is whole.
constexpr std::size_t kBufferedBytesALookUp = 1024;
constexpr int kEventsPerCall = 256;
constexpr int kCallsPerWakeUp = 16;  // then others on this I/O thread have their turn
constexpr milliseconds kAcceptPause{100};

UniqueFd make_epoll() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) throw_system_error("epoll_create1", errno);
  return fd;
}

// Generation 0 marks a listener.
epoll_event make_event(std::uint32_t events, std::uint32_t generation, std::uint32_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (std::uint64_t{generation} << 32) | number;
  return event;
}

}  // namespace

class LocalBackend final : public Backend {
 public:
  LocalBackend(boost::asio::any_io_executor io, std::size_t max_total_bytes)
      : io_(std::move(io)), state_(std::make_shared<StoreState>(max_total_bytes)) {}
  ~LocalBackend() override {
    do_in_turns(io_, [state = std::move(state_)] { return state->forget_some(); });
  }

  const Outcome& step(ConnectionId from, const Request& request, std::string_view) override {
    return state_->step(from, request);
  }
  std::size_t work_of(ConnectionId from, const Request& request) const override {
    return state_->work_of(from, request);
  }
  std::size_t work_for_waits_of(const Request& request) const override {
    return state_->num_waits() < kTurnWork ? 0 : state_->num_waits_for(request);
  }
  const Outcome& disconnect(ConnectionId connection) override {
    return state_->disconnect(connection);
  }
  bool has_room() const override { return true; }
  std::size_t num_keys() const override { return state_->num_keys(); }
  std::size_t content_bytes() const override { return state_->content_bytes(); }
  std::size_t total_bytes() const override { return state_->total_bytes(); }

 private:
  const boost::asio::any_io_executor io_;
  std::shared_ptr<StoreState> state_;
};

// All sockets are in a level-triggered epoll set of the server's own. Asio watches only that set's
// descriptor. So a wake-up takes a batch of events with one call. Asio's own sockets would cost an
// epoll_ctl or a vain recv per request.
class StoreServer::Impl : public std::enable_shared_from_this<Impl> {
  // Identifies a connection later, when it may have ended and its descriptor may be another's.
  struct Handle {
    int fd = -1;
    std::uint32_t generation = 0;
    Clock::time_point since;
  };

 public:
  // ---- events ----

  // `backend` null: the server has a key space of its own.
  Impl(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
      : options_(std::move(options)),
        local_(backend
                   ? nullptr
                   : std::make_unique<LocalBackend>(io.get_executor(), options_.max_total_bytes)),
        backend_(backend ? *backend : *local_),
        epoll_(io, make_epoll().release()),
        sweep_timer_(io),
        large_timer_(io),
        accept_timer_(io),
        listeners_(epoll_.native_handle(), options_.name, options_.only_user),
        buffer_(kReceiveBytes) {}

  // Called once, after construction.
  void await_events() {
    epoll_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                      [weak = weak_from_this()](const boost::system::error_code& error) {
                        const std::shared_ptr<Impl> self = weak.lock();
                        if (!self || error) return;
                        self->take_events();
                        self->await_events();
                      });
  }

  // Takes events. The next wake-up begins with the remaining ones, so that each client has its
  // turn.
  void take_events() {
    wake_up_work_ = 0;
    for (int call = 0; call < kCallsPerWakeUp;) {
      if (next_event_ == num_events_) {
        next_event_ = 0;
        num_events_ = ::epoll_wait(epoll_.native_handle(), events_, kEventsPerCall, 0);
        if (num_events_ <= 0) {
          num_events_ = 0;
          return;
        }
        ++call;
      }
      while (next_event_ < num_events_) {
        if (wake_up_work_ >= kWakeUpWork) return;
        take_event(events_[next_event_++]);
      }
    }
  }

  void take_event(const epoll_event& event) {
    const auto generation = static_cast<std::uint32_t>(event.data.u64 >> 32);
    const auto number = static_cast<std::uint32_t>(event.data.u64);
    if (generation == 0) return on_listener(number);
    Connection* connection = find(static_cast<int>(number), generation);
    if (!connection) return;  // closed in the meantime
    // If the connection was held or blocked in the meantime, some events are no longer wanted.
    const std::uint32_t events = event.events & (connection->interest | EPOLLERR | EPOLLHUP);
    if (events & EPOLLOUT) on_writable(*connection);
    if (events & EPOLLIN) {
      if (!connection->closing) on_readable(*connection);
    } else if (events & EPOLLRDHUP && wants_no_answer(*connection)) {
      connection->is_large = false;  // the request is carried out all the same
      update_interest(*connection);
    } else if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
      close_later(*connection, "");
    }
    if (!marked_.empty()) close_marked();
  }

  // Returns whether its next request, which has arrived, has no reply.
  static bool wants_no_answer(const Connection& connection) {
    const auto opcode = static_cast<Opcode>(connection.input().front());
    return opcode == Opcode::kSet || opcode == Opcode::kMultiSet || opcode == Opcode::kAppend ||
           opcode == Opcode::kQueuePush;
  }

  void on_listener(std::size_t index) {
    const int error = listeners_.accept(index, [this](UniqueFd fd, const SocketAddress& peer) {
      add_connection(std::move(fd), peer);
    });
    if (error == 0) return;
    listeners_.pause(error, num_connections_);
    call_after(accept_timer_, kAcceptPause, &Impl::resume_accepting);
  }

  void resume_accepting() {
    accept_timer_.cancel();
    listeners_.resume();
  }

  void on_readable(Connection& connection) {
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
    wake_up_work_ += bytes.size() / kBufferedBytesALookUp;
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

  void on_writable(Connection& connection) {
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

  void listen(UniqueFd listener, bool is_for_loopback) {
    listeners_.add(std::move(listener), is_for_loopback);
  }

  void adopt(UniqueFd connection) {
    SocketAddress peer;
    try {
      peer = peer_address(connection.get());
    } catch (const Error&) {
      return;  // it has already ended
    }
    ::fcntl(connection.get(), F_SETFL, ::fcntl(connection.get(), F_GETFL) | O_NONBLOCK);
    set_socket_options(connection.get());
    add_connection(std::move(connection), peer);
  }

  void add_connection(UniqueFd fd, const SocketAddress& peer) {
    const int number = fd.get();
    const auto index = static_cast<std::size_t>(number);
    if (index >= connections_.size()) connections_.resize(std::max(index + 1, index * 3 / 2));
    const std::uint32_t generation = next_generation_;
    if (++next_generation_ == 0) next_generation_ = 1;
    auto connection = std::make_unique<Connection>(std::move(fd), peer, generation, limits_);
    connection->interest = EPOLLIN;
    epoll_event event = make_event(EPOLLIN, generation, static_cast<std::uint32_t>(number));
    if (::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, number, &event) != 0) {
      log_about_peer(LogLevel::kWarning, options_.name, ": refused ", connection->peer_text(), ": ",
                     errno_text(errno));
      return;
    }
    DDPRUN_CHECK(!connections_[index]);
    connections_[index] = std::move(connection);
    ++num_connections_;

    const Clock::time_point now = Clock::now();
    while (!handshakes_.empty()) {
      Connection* oldest = find(handshakes_.front().fd, handshakes_.front().generation);
      if (oldest && !oldest->parser().validated()) break;
      handshakes_.pop_front();
    }
    handshakes_.push_back(Handle{number, generation, now});
    arm_sweep();
  }

  Connection* find(int fd, std::uint32_t generation) const {
    const auto index = static_cast<std::size_t>(fd);
    if (index >= connections_.size() || !connections_[index]) return nullptr;
    Connection* connection = connections_[index].get();
    return connection->generation() == generation ? connection : nullptr;
  }

  // Closes the connection at the end of the event. With an empty reason nothing is logged.
  void close_later(Connection& connection, const std::string& reason) {
    if (connection.closing) return;
    connection.closing = true;
    marked_.push_back(connection.fd());
    if (!reason.empty()) {
      log_about_peer(LogLevel::kWarning, options_.name, ": closed the connection of ",
                     connection.peer_text(), ": ", reason);
    }
  }

  // Closes marked connections. Removing their waits is work, so some of them close later. Much of
  // it counts as a large request's work, so that no client gets it for free by reconnecting.
  void close_marked() {
    std::size_t work = 0;
    while (!marked_.empty() && work < kTurnWork) {
      const int fd = marked_.back();
      marked_.pop_back();
      const auto index = static_cast<std::size_t>(fd);
      buffered_bytes_ -= connections_[index]->accounted_bytes;
      work += connections_[index]->accounted_bytes / kBufferedBytesALookUp;
      connections_[index].reset();
      --num_connections_;
      const Outcome& outcome = backend_.disconnect(static_cast<ConnectionId>(fd));
      work += outcome.work;
      if (outcome.work >= kLargeWork) large_rate_.spend(outcome.work, Clock::now());
      deliver(outcome, nullptr);
    }
    wake_up_work_ += work;
    if (!marked_.empty()) go_on_later();
    if (listeners_.is_paused()) resume_accepting();
    say_if_unused();
  }

  void when_unused(std::function<void()> unused) {
    unused_ = std::move(unused);
    say_if_unused();
  }

  void say_if_unused() {
    if (!unused_ || num_connections_ > 0) return;
    // Called later, since `unused_` may destroy this server.
    boost::asio::post(epoll_.get_executor(), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || !self->unused_ || self->num_connections_ > 0) return;
      std::exchange(self->unused_, nullptr)();
    });
  }

  void update_interest(Connection& connection) {
    // While replies wait, no requests are read: TCP slows the client down.
    const std::uint32_t interest = connection.blocked()  ? EPOLLOUT
                                   : connection.is_large ? static_cast<std::uint32_t>(EPOLLRDHUP)
                                   : connection.held     ? 0
                                                         : static_cast<std::uint32_t>(EPOLLIN);
    if (connection.closing || interest == connection.interest) return;
    connection.interest = interest;
    epoll_event event =
        make_event(interest, connection.generation(), static_cast<std::uint32_t>(connection.fd()));
    ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, connection.fd(), &event);
    if (connection.blocked() && !connection.watched) {
      connection.watched = true;
      stalled_.push_back(Handle{connection.fd(), connection.generation(), Clock::now()});
      arm_sweep();
    }
  }

  // Reads nothing from the connection until go_on().
  void hold(Connection& connection, std::deque<Handle>& list) {
    if (connection.held || connection.closing) return;
    connection.held = true;
    list.push_back(Handle{connection.fd(), connection.generation(), {}});
    update_interest(connection);
  }

  // Goes on with the first connection of the list.
  void go_on(std::deque<Handle>& list) {
    const Handle handle = list.front();
    list.pop_front();
    Connection* connection = find(handle.fd, handle.generation);
    if (!connection || connection->closing) return;
    connection->held = connection->is_large = false;
    if (!connection->blocked()) {
      connection->consume_input(consume(*connection, connection->input(), true));
    }
    account(*connection);
    update_interest(*connection);
    close_marked();
  }

  // Ends the connection's turn: other clients and other handlers on this I/O thread have theirs.
  void rest(Connection& connection) {
    hold(connection, resting_);
    go_on_later();
  }

  void go_on_later() {
    if (std::exchange(will_go_on_, true)) return;
    boost::asio::post(epoll_.get_executor(), [weak = weak_from_this()] {
      const std::shared_ptr<Impl> self = weak.lock();
      if (!self) return;
      self->will_go_on_ = false;
      if (!self->resting_.empty()) self->go_on(self->resting_);
      self->close_marked();
      if (!self->resting_.empty()) self->go_on_later();
    });
  }

  void resume() {
    for (std::size_t left = without_room_.size(); left > 0; --left) go_on(without_room_);
  }

  // Holds the connection if its large request must wait. Returns false if it may go on now.
  bool wait_if_large(Connection& connection) {
    if (large_rate_.allowed(Clock::now()) > 0) return false;
    connection.is_large = true;
    hold(connection, large_);
    wait_for_large();
    return true;
  }

  // Goes on with the large requests that the rate allows by now.
  void go_on_with_large() {
    waits_for_large_ = false;
    while (!large_.empty() && large_rate_.allowed(Clock::now()) > 0) go_on(large_);
    wait_for_large();
  }

  void wait_for_large() {
    if (large_.empty() || waits_for_large_) return;
    waits_for_large_ = true;
    call_after(large_timer_, large_rate_.time_until_allowed(Clock::now()), &Impl::go_on_with_large);
  }

  void account(Connection& connection) {
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

  StoreServerStats stats() const {
    return {.num_connections = num_connections_,
            .num_keys = backend_.num_keys(),
            .content_bytes = backend_.content_bytes(),
            .num_requests = num_requests_,
            .num_slow_readers = stalled_.size()};
  }

  // ---- requests and replies ----

  // Carries out the complete requests in `bytes` while the client takes the replies. Returns the
  // bytes used. With `has_waited` the first request may take a whole turn. Other long requests wait
  // for their turns, so that a short request never waits for more than one of them.
  std::size_t consume(Connection& connection, std::string_view bytes, bool has_waited = false) {
    std::size_t used = 0, work = 0;
    connection.begin_turn();
    while (used < bytes.size() && !connection.closing && !connection.blocked()) {
      if (!backend_.has_room()) {
        hold(connection, without_room_);
        break;
      }
      if (work >= kTurnWork) {
        rest(connection);
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
      const auto id = static_cast<ConnectionId>(connection.fd());
      const std::size_t asked = backend_.work_of(id, request_);
      if (asked >= kLargeWork && wait_if_large(connection)) break;
      if (!has_waited && asked + backend_.work_for_waits_of(request_) >= kTurnWork) {
        rest(connection);
        break;
      }
      has_waited = false;
      const std::string_view request = bytes.substr(used, connection.parser().request_bytes());
      used += request.size();
      ++num_requests_;
      const Outcome& outcome = backend_.step(id, request_, request);
      work += outcome.work;
      wake_up_work_ += outcome.work;
      if (asked >= kLargeWork)
        large_rate_.spend(asked, Clock::now());  // without the work for waits
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

  // Sends the replies; those to `current`, which may be null, are gathered in scratch_.
  void deliver(const Outcome& outcome, Connection* current) {
    for (const Reply& reply : outcome.replies) {
      if (current && reply.to == static_cast<ConnectionId>(current->fd())) {
        scratch_ += reply.bytes;
        if (reply.body && (reply.body->size() > kCopiedBodyBytes || current->blocked())) {
          send_gathered(*current, reply.body);
        } else if (reply.body) {
          scratch_ += *reply.body;
        }
        if (scratch_.size() > kGatherBytes) send_gathered(*current, nullptr);
      } else if (Connection* other = connections_[reply.to].get()) {
        if (!other->closing) send(*other, reply.bytes, reply.body);
      }
    }
  }

  void reply(ConnectionId to, std::string_view bytes) {
    Connection* connection = to < connections_.size() ? connections_[to].get() : nullptr;
    if (!connection || connection->closing) return;
    send(*connection, bytes, nullptr);
    close_marked();
  }

  void refuse(ConnectionId id, const std::string& reason) {
    Connection* connection = id < connections_.size() ? connections_[id].get() : nullptr;
    if (!connection) return;
    close_later(*connection, reason);
    close_marked();
  }

  void send_gathered(Connection& connection, const SharedValue& body) {
    if (scratch_.empty() && !body) return;
    if (!connection.closing) send(connection, scratch_, body);
    scratch_.clear();
    if (scratch_.capacity() > kKeptBytes) scratch_.shrink_to_fit();
  }

  void send(Connection& connection, std::string_view head, const SharedValue& body) {
    if (!connection.send(head, body)) {
      close_later(connection, "");
    } else if (connection.blocked()) {
      account(connection);
      update_interest(connection);
    }
  }

  // ---- timers ----

  void arm_sweep() {
    if (sweeping_) return;
    sweeping_ = true;
    const milliseconds shorter = std::min(options_.handshake_timeout, options_.stall_timeout);
    call_after(sweep_timer_, std::clamp(shorter / 4, milliseconds(5), milliseconds(5000)),
               &Impl::sweep);
  }

  void call_after(boost::asio::steady_timer& timer, Clock::duration delay, void (Impl::*then)()) {
    timer.expires_after(delay);
    timer.async_wait([weak = weak_from_this(), then](const boost::system::error_code& error) {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self && !error) (self.get()->*then)();
    });
  }

  void sweep() {
    sweeping_ = false;
    const Clock::time_point now = Clock::now();
    while (!handshakes_.empty()) {
      const Handle& oldest = handshakes_.front();
      Connection* connection = find(oldest.fd, oldest.generation);
      const bool waits = connection && !connection->parser().validated();
      if (waits && now - oldest.since < options_.handshake_timeout) break;
      if (waits && connection->held) {  // it is the server that doesn't read
        handshakes_.push_back({oldest.fd, oldest.generation, now});
        handshakes_.pop_front();
        continue;
      }
      if (waits) {
        close_later(*connection,
                    concat("no handshake in ", options_.handshake_timeout.count(), " ms"));
      }
      handshakes_.pop_front();
    }
    std::erase_if(stalled_, [&](const Handle& handle) {
      Connection* connection = find(handle.fd, handle.generation);
      if (!connection) return true;
      if (!connection->blocked()) {
        connection->watched = false;
        return true;
      }
      if (now - connection->last_progress() < options_.stall_timeout) return false;
      close_later(*connection, concat("it doesn't read: ", connection->unsent_bytes(),
                                      " bytes of replies wait, "
                                      "none was taken for ",
                                      options_.stall_timeout.count(), " ms"));
      return true;
    });
    close_marked();
    if (!handshakes_.empty() || !stalled_.empty()) arm_sweep();
  }

 private:
  // Constant after construction.
  const StoreServerOptions options_;
  const RequestLimits limits_;

  const std::unique_ptr<LocalBackend> local_;  // null: the backend is elsewhere
  Backend& backend_;
  boost::asio::posix::stream_descriptor epoll_;
  boost::asio::steady_timer sweep_timer_;
  boost::asio::steady_timer large_timer_;
  boost::asio::steady_timer accept_timer_;
  Listeners listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by descriptor = ConnectionId
  std::vector<int> marked_;                               // close_marked() will close them
  std::deque<Handle> handshakes_;  // oldest first; some are done or have ended
  // Held connections, and some that have ended in the meantime.
  std::deque<Handle> without_room_;  // The backend has no room.
  std::deque<Handle> resting_;       // Their turn is over, and more requests have arrived.
  std::deque<Handle> large_;         // Their next request is large; the longest wait is first.
  std::vector<Handle> stalled_;      // Were blocked; some read again or have ended.
  Rate large_rate_{kLargeWorkPerSecond};
  bool waits_for_large_ = false;        // large_timer_ runs
  bool will_go_on_ = false;             // go_on_later() was called
  epoll_event events_[kEventsPerCall];  // from next_event_ on not taken yet
  int next_event_ = 0;
  int num_events_ = 0;
  std::size_t wake_up_work_ = 0;  // that the last wake-up has done
  std::vector<char> buffer_;      // for recv()
  std::string scratch_;           // replies to the present connection
  Request request_;
  std::size_t num_connections_ = 0;
  std::function<void()> unused_;  // if set, called at the last connection's end
  std::size_t buffered_bytes_ = 0;
  std::uint64_t num_requests_ = 0;
  std::uint32_t next_generation_ = 1;
  bool sweeping_ = false;
};

std::size_t default_store_bytes() {
  static const std::size_t bytes =
      static_cast<std::size_t>(std::min(std::uint64_t{4} << 30, usable_memory_bytes() / 4));
  return bytes;
}

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
    : impl_(std::make_shared<Impl>(io, std::move(options), backend)) {
  raise_file_limit();
  impl_->await_events();
}

void StoreServer::listen(UniqueFd listener, bool is_for_loopback) {
  impl_->listen(std::move(listener), is_for_loopback);
}
void StoreServer::adopt(UniqueFd connection) { impl_->adopt(std::move(connection)); }
StoreServerStats StoreServer::stats() const { return impl_->stats(); }
void StoreServer::when_unused(std::function<void()> unused) {
  impl_->when_unused(std::move(unused));
}
void StoreServer::reply(ConnectionId to, std::string_view bytes) { impl_->reply(to, bytes); }
void StoreServer::refuse(ConnectionId connection, const std::string& reason) {
  impl_->refuse(connection, reason);
}
void StoreServer::resume() { impl_->resume(); }

}  // namespace ddprun::store
