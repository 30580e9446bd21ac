// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store_server/file_limit.h"
#include "rendezvous/store_server/peer_user.h"

namespace ddprun::store {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kGatherBytes = 64 << 10;      // Replies sent in one go.
constexpr std::size_t kCopiedBodyBytes = 16 << 10;  // Larger values are sent from the store.
constexpr std::size_t kKeptBytes = 1 << 20;         // Capacity of scratch_ between requests.
constexpr int kEventsPerCall = 256;
constexpr int kCallsPerWakeUp = 16;  // Then others on this io thread have their turn.
constexpr int kAcceptsPerEvent = 256;
constexpr milliseconds kAcceptPause{100};

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

// Replies leave at once; a peer whose host vanished is noticed in about four minutes.
void set_socket_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 120);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

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

// The bytes that the socket took, 0 when it is full, -1 when the connection is broken.
ssize_t send_two(int fd, std::string_view head, std::string_view body) {
  iovec parts[2] = {{const_cast<char*>(head.data()), head.size()},
                    {const_cast<char*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  for (;;) {
    const ssize_t sent = body.empty()
                             ? ::send(fd, head.data(), head.size(), MSG_NOSIGNAL | MSG_DONTWAIT)
                             : ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(std::size_t max_total_bytes) : state_(max_total_bytes) {}

  const Outcome& step(ConnectionId from, const Request& request, std::string_view) override {
    return state_.step(from, request);
  }
  const Outcome& disconnect(ConnectionId connection) override {
    return state_.disconnect(connection);
  }
  bool has_room() const override { return true; }
  std::size_t num_keys() const override { return state_.num_keys(); }
  std::size_t content_bytes() const override { return state_.content_bytes(); }
  std::size_t total_bytes() const override { return state_.total_bytes(); }

 private:
  StoreState state_;
};

// One client's socket with what waits to be parsed and what waits to be sent. It holds buffers only
// while a request is partial or the client doesn't read.
class Connection {
 public:
  // `fd` is non-blocking. `peer` is kept in 28 bytes, for log lines after the peer has gone.
  Connection(UniqueFd fd, const SocketAddress& peer, std::uint32_t generation,
             const RequestLimits& limits)
      : fd_(std::move(fd)), generation_(generation), parser_(limits) {
    static_assert(sizeof peer_ == sizeof(sockaddr_in6));
    std::memcpy(peer_, &peer.storage, sizeof peer_);
  }

  int fd() const { return fd_.get(); }
  std::uint32_t generation() const { return generation_; }
  std::string peer_text() const {
    SocketAddress address;
    std::memcpy(&address.storage, peer_, sizeof peer_);
    address.length = sizeof peer_;
    return address.text();
  }

  RequestParser& parser() { return parser_; }

  // Bytes of requests that are not parsed yet.
  const std::string& input() const { return input_; }

  // Adds to input(), growing the buffer no faster than bytes arrive.
  void add_input(std::string_view bytes) {
    const std::size_t size = input_.size() + bytes.size();
    if (size > input_.capacity()) {
      // Doubled, but not beyond what the request is known to need.
      constexpr std::size_t kSlackBytes = 64 << 10;
      const std::size_t needed = std::max(parser_.needed_bytes(), size);
      input_.reserve(std::min(needed, size + std::max(size, kSlackBytes)));
    }
    input_.append(bytes);
  }
  void consume_input(std::size_t size) {
    if (size == input_.size()) {
      input_ = std::string();
    } else if (size > 0) {
      input_ = input_.substr(size);
    }
  }

  // Sends, or keeps what the socket doesn't take now. False: the connection is broken.
  bool send(std::string_view head, const SharedValue& body) {
    if (blocked()) {
      keep(head, body, 0);
      return true;
    }
    const std::size_t size = head.size() + (body ? body->size() : 0);
    if (size == 0) return true;
    const ssize_t sent = send_two(fd_.get(), head, body ? std::string_view(*body) : "");
    if (sent < 0) return false;
    if (static_cast<std::size_t>(sent) < size) keep(head, body, static_cast<std::size_t>(sent));
    return true;
  }

  // Sends of what is kept. False: broken.
  bool flush() {
    while (output_) {
      const std::string_view rest = output_->pieces.front().view().substr(output_->sent_of_first);
      const ssize_t sent = rest.empty() ? 0 : send_two(fd_.get(), rest, "");
      if (sent < 0) return false;
      if (sent == 0 && !rest.empty()) return true;
      if (sent > 0) output_->last_progress = Clock::now();
      output_->sent_of_first += static_cast<std::size_t>(sent);
      output_->bytes -= static_cast<std::size_t>(sent);
      if (!output_->pieces.front().body) output_->own_bytes -= static_cast<std::size_t>(sent);
      if (static_cast<std::size_t>(sent) < rest.size()) continue;
      output_->pieces.pop_front();
      output_->sent_of_first = 0;
      if (output_->pieces.empty()) output_.reset();
    }
    return true;
  }

  bool blocked() const { return output_ != nullptr; }
  std::size_t unsent_bytes() const { return output_ ? output_->bytes : 0; }

  // When the client last took bytes, or began to block. Meaningful while blocked().
  Clock::time_point last_progress() const {
    return output_ ? output_->last_progress : Clock::time_point();
  }

  // What this connection's own buffers hold; values that it shares with the store don't count.
  std::size_t buffered_bytes() const { return input_.size() + (output_ ? output_->own_bytes : 0); }

  // Bookkeeping of the server.
  std::size_t accounted_bytes = 0;  // of buffered_bytes(), in the server's sum
  std::uint32_t interest = 0;       // epoll events that it is registered for
  bool closing = false;             // to be closed at the end of the event
  bool held = false;     // in the server's list of those that the backend has no room for
  bool watched = false;  // in the server's list of those that were blocked

 private:
  struct Output {
    struct Piece {
      std::string bytes;
      SharedValue body;  // instead of bytes
      std::string_view view() const { return body ? std::string_view(*body) : bytes; }
    };
    std::deque<Piece> pieces;
    std::size_t sent_of_first = 0;
    std::size_t bytes = 0;
    std::size_t own_bytes = 0;  // of these, not shared
    Clock::time_point last_progress;
  };

  void keep(std::string_view head, const SharedValue& body, std::size_t already_sent) {
    if (!output_) {
      output_ = std::make_unique<Output>();
      output_->last_progress = Clock::now();
    }
    const std::size_t sent_of_head = std::min(head.size(), already_sent);
    head.remove_prefix(sent_of_head);
    output_->bytes += head.size();
    output_->own_bytes += head.size();
    if (!head.empty()) {
      // Small replies share a piece.
      constexpr std::size_t kJoinBytes = 4096;
      std::deque<Output::Piece>& pieces = output_->pieces;
      if (!pieces.empty() && !pieces.back().body && pieces.back().bytes.size() < kJoinBytes) {
        pieces.back().bytes.append(head);
      } else {
        pieces.push_back({std::string(head), nullptr});
      }
    }
    if (!body) return;
    if (output_->pieces.empty()) output_->sent_of_first = already_sent - sent_of_head;
    output_->bytes += body->size() - (already_sent - sent_of_head);
    output_->pieces.push_back({std::string(), body});
  }

  UniqueFd fd_;
  std::uint32_t generation_;
  unsigned char peer_[28];  // sockaddr_in or sockaddr_in6
  RequestParser parser_;
  std::string input_;
  std::unique_ptr<Output> output_;
};

// All sockets are in one level-triggered epoll set of the server's own, and only that set's
// descriptor is known to Asio: a wake-up takes a batch of events with one call, where Asio's own
// sockets would cost an epoll_ctl or a fruitless recv per request.
class StoreServer::Impl : public std::enable_shared_from_this<Impl> {
  // Names a connection for later, when it may have gone and its descriptor be another's.
  struct Handle {
    int fd = -1;
    std::uint32_t generation = 0;
    Clock::time_point since;
  };

 public:
  // ---- events ----

  // `backend`: null: a key space of its own.
  Impl(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
      : options_(std::move(options)),
        local_(backend ? nullptr : std::make_unique<LocalBackend>(options_.max_total_bytes)),
        backend_(backend ? *backend : *local_),
        epoll_(io, make_epoll().release()),
        sweep_timer_(io),
        accept_timer_(io),
        buffer_(kReceiveBytes) {}

  // Once, after construction.
  void await_events() {
    epoll_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                      [weak = weak_from_this()](const boost::system::error_code& error) {
                        const std::shared_ptr<Impl> self = weak.lock();
                        if (!self || error) return;
                        self->take_events();
                        self->await_events();
                      });
  }

  void take_events() {
    epoll_event events[kEventsPerCall];
    for (int call = 0; call < kCallsPerWakeUp; ++call) {
      const int count = ::epoll_wait(epoll_.native_handle(), events, kEventsPerCall, 0);
      if (count <= 0) return;
      for (int i = 0; i < count; ++i) {
        const auto generation = static_cast<std::uint32_t>(events[i].data.u64 >> 32);
        const auto number = static_cast<std::uint32_t>(events[i].data.u64);
        if (generation == 0) {
          on_listener(number);
          continue;
        }
        Connection* connection = find(static_cast<int>(number), generation);
        if (!connection) continue;  // Closed by an earlier event of this batch.
        if (events[i].events & EPOLLOUT) on_writable(*connection);
        if (events[i].events & EPOLLIN) {
          if (!connection->closing) on_readable(*connection);
        } else if (events[i].events & (EPOLLERR | EPOLLHUP)) {
          close_later(*connection, "");
        }
        if (!marked_.empty()) close_marked();
      }
    }
  }

  void on_listener(std::size_t index) {
    int last_error = 0;
    bool has_accepted = false;
    for (int i = 0; i < kAcceptsPerEvent; ++i) {
      SocketAddress peer;
      peer.length = sizeof peer.storage;
      const int fd = ::accept4(listeners_[index].get(), reinterpret_cast<sockaddr*>(&peer.storage),
                               &peer.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        UniqueFd connection(fd);
        has_accepted = true;
        if (is_welcome(fd)) add_connection(std::move(connection), peer);
        continue;
      }
      last_error = errno;
      if (last_error == EAGAIN || last_error == EWOULDBLOCK) return;
      if (!is_of_one_connection(last_error)) return pause_accepting(last_error);
    }
    if (!has_accepted) pause_accepting(last_error);
  }

  void on_readable(Connection& connection) {
    if (!backend_.has_room()) return hold(connection);
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

  void on_writable(Connection& connection) {
    if (!connection.flush()) {
      close_later(connection, "");
      return;
    }
    if (!connection.blocked() && !connection.input().empty()) {
      connection.consume_input(consume(connection, connection.input()));
    }
    account(connection);
    update_interest(connection);
  }

  // ---- connections ----

  void listen(UniqueFd listener) {
    set_socket_options(listener.get());  // Accepted sockets inherit them.
    epoll_event event = make_event(EPOLLIN, 0, static_cast<std::uint32_t>(listeners_.size()));
    if (accepting_ &&
        ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, listener.get(), &event) != 0) {
      throw_system_error("epoll_ctl", errno);
    }
    listeners_.push_back(std::move(listener));
  }

  void adopt(UniqueFd connection) {
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

  bool is_welcome(int fd) {
    if (!options_.only_user) return true;
    const auto user = peer_user(fd);
    if (user == options_.only_user) return true;
    // Nobody's: it has gone already.
    if (user && refused_users_.insert(*user).second) {
      log_warning(options_.name, ": refused a connection of user ", *user, ": it is for user ",
                  *options_.only_user, " alone (said once)");
    }
    return false;
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
      log_warning(options_.name, ": refused ", connection->peer_text(), ": ", errno_text(errno));
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

  // Closes at the end of the event. An empty reason: nothing to say.
  void close_later(Connection& connection, const std::string& reason) {
    if (connection.closing) return;
    connection.closing = true;
    marked_.push_back(connection.fd());
    if (!reason.empty()) {
      log_warning(options_.name, ": closed the connection of ", connection.peer_text(), ": ",
                  reason);
    }
  }

  void close_marked() {
    while (!marked_.empty()) {
      const int fd = marked_.back();
      marked_.pop_back();
      const auto index = static_cast<std::size_t>(fd);
      buffered_bytes_ -= connections_[index]->accounted_bytes;
      connections_[index].reset();
      --num_connections_;
      deliver(backend_.disconnect(static_cast<ConnectionId>(fd)), nullptr);
    }
    if (!accepting_) resume_accepting();
    say_if_unused();
  }

  void when_unused(std::function<void()> unused) {
    unused_ = std::move(unused);
    say_if_unused();
  }

  void say_if_unused() {
    if (!unused_ || num_connections_ > 0) return;
    // Not now: the answer may be our end.
    boost::asio::post(epoll_.get_executor(), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || !self->unused_ || self->num_connections_ > 0) return;
      std::exchange(self->unused_, nullptr)();
    });
  }

  void update_interest(Connection& connection) {
    // While replies wait, requests wait too: TCP slows the client down.
    const std::uint32_t interest = connection.blocked() ? EPOLLOUT
                                   : connection.held    ? 0
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

  // Until the backend has room.
  void hold(Connection& connection) {
    if (connection.held || connection.closing) return;
    connection.held = true;
    held_.push_back(Handle{connection.fd(), connection.generation(), {}});
    update_interest(connection);
  }

  void resume() {
    for (const Handle& handle : std::exchange(held_, {})) {
      Connection* connection = find(handle.fd, handle.generation);
      if (!connection || connection->closing) continue;
      connection->held = false;
      if (!connection->blocked()) {
        connection->consume_input(consume(*connection, connection->input()));
      }
      account(*connection);
      update_interest(*connection);
    }
    close_marked();
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

  void pause_accepting(int error_number) {
    if (said_accept_errors_.insert(error_number).second) {
      log_error(options_.name, ": can't accept more than ", num_connections_,
                " connections now: ", accept_trouble(error_number));
    }
    if (accepting_) {
      accepting_ = false;
      for (const UniqueFd& listener : listeners_) {
        ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, listener.get(), nullptr);
      }
    }
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self && !error) self->resume_accepting();
    });
  }

  void resume_accepting() {
    if (accepting_) return;
    accepting_ = true;
    accept_timer_.cancel();
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      epoll_event event = make_event(EPOLLIN, 0, static_cast<std::uint32_t>(i));
      ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, listeners_[i].get(), &event);
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

  // Carries out the complete requests in `bytes` while the client takes the replies; bytes used.
  std::size_t consume(Connection& connection, std::string_view bytes) {
    std::size_t used = 0;
    while (used < bytes.size() && !connection.closing && !connection.blocked()) {
      if (!backend_.has_room()) {
        hold(connection);
        break;
      }
      const ParseStatus status = connection.parser().parse(bytes.substr(used), &request_);
      if (status == ParseStatus::kNeedMore) break;
      if (status == ParseStatus::kMalformed) {
        send_gathered(connection, nullptr);
        close_later(connection, connection.parser().error());
        return used;
      }
      const std::string_view request = bytes.substr(used, connection.parser().request_bytes());
      used += request.size();
      ++num_requests_;
      const Outcome& outcome =
          backend_.step(static_cast<ConnectionId>(connection.fd()), request_, request);
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

  // `current`: whose replies are gathered in scratch_; may be null.
  void deliver(const Outcome& outcome, Connection* current) {
    for (const Reply& reply : outcome.replies) {
      if (current && reply.to == static_cast<ConnectionId>(current->fd())) {
        scratch_ += reply.bytes;
        if (reply.body && reply.body->size() > kCopiedBodyBytes) {
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
    sweep_timer_.expires_after(std::clamp(shorter / 4, milliseconds(5), milliseconds(5000)));
    sweep_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self && !error) self->sweep();
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
      if (waits && connection->held) {  // it is we who don't read
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

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
    : impl_(std::make_shared<Impl>(io, std::move(options), backend)) {
  raise_file_limit();
  impl_->await_events();
}

void StoreServer::listen(UniqueFd listener) { impl_->listen(std::move(listener)); }
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
