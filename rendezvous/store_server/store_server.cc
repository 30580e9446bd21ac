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
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "common/cgroup_limits.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/peer_user.h"
#include "common/socket.h"
#include "rendezvous/store/rate.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::store {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kGatherBytes = 64 << 10;      // Replies sent in one go.
constexpr std::size_t kCopiedBodyBytes = 16 << 10;  // Larger values are sent from the store.
constexpr std::size_t kKeptBytes = 1 << 20;         // Capacity of scratch_ between requests.
constexpr std::size_t kTurnBytes = 256 << 10;  // Sent to a connection, then others have their turn.
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

// Grows where it lies: realloc(3) moves the pages of a large block, where a std::string would copy
// 32 MiB while others wait.
class InputBytes {
 public:
  std::string_view view() const { return {bytes_.get(), size_}; }
  std::size_t size() const { return size_; }

  // `most`: it is not known to need more room than that.
  void append(std::string_view bytes, std::size_t most) {
    const std::size_t size = size_ + bytes.size();
    if (size > capacity_) {
      constexpr std::size_t kSlackBytes = 64 << 10;
      grow_to(std::min(std::max(most, size), size + std::max(size, kSlackBytes)));
    }
    std::memcpy(bytes_.get() + size_, bytes.data(), bytes.size());
    size_ = size;
  }

  // The memory is given back.
  void drop_front(std::size_t size) {
    if (size == 0) return;
    InputBytes rest;
    if (size < size_) rest.append(view().substr(size), size_ - size);
    std::swap(*this, rest);
  }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };

  void grow_to(std::size_t capacity) {
    auto* const bytes = static_cast<char*>(std::realloc(bytes_.get(), capacity));
    if (bytes == nullptr) throw std::bad_alloc();
    static_cast<void>(bytes_.release());
    bytes_.reset(bytes);
    capacity_ = capacity;
  }

  std::unique_ptr<char, Free> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(std::size_t max_total_bytes) : state_(max_total_bytes) {}

  const Outcome& step(ConnectionId from, const Request& request, std::string_view) override {
    return state_.step(from, request);
  }
  std::size_t work_of(ConnectionId from, const Request& request) const override {
    return state_.work_of(from, request);
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
  std::string_view input() const { return input_.view(); }
  // Grows no faster than bytes arrive: doubled, but not beyond what the request is known to need.
  void add_input(std::string_view bytes) { input_.append(bytes, parser_.needed_bytes()); }
  void consume_input(std::size_t size) { input_.drop_front(size); }

  // Sends, or keeps what the socket doesn't take now. False: the connection is broken.
  bool send(std::string_view head, const SharedValue& body) {
    const std::size_t size = head.size() + (body ? body->size() : 0);
    if (size == 0) return true;
    if (blocked() || sent_in_turn_ >= kTurnBytes) {
      keep(head, body, 0);
      return true;
    }
    // No more: where the client reads as fast, one call would send all of a large value.
    const std::string_view part = body ? std::string_view(*body).substr(0, kTurnBytes) : "";
    const ssize_t sent = send_two(fd_.get(), head, part);
    if (sent < 0) return false;
    sent_in_turn_ += static_cast<std::size_t>(sent);
    if (static_cast<std::size_t>(sent) < size) keep(head, body, static_cast<std::size_t>(sent));
    return true;
  }

  // Replies may be sent again: others have had their turn.
  void begin_turn() { sent_in_turn_ = 0; }

  // Sends of what is kept. False: broken.
  bool flush() {
    while (output_ && sent_in_turn_ < kTurnBytes) {
      const std::string_view rest =
          output_->pieces.front().view().substr(output_->sent_of_first, kTurnBytes);
      const ssize_t sent = rest.empty() ? 0 : send_two(fd_.get(), rest, "");
      if (sent < 0) return false;
      if (sent == 0 && !rest.empty()) return true;
      if (sent > 0) output_->last_progress = Clock::now();
      sent_in_turn_ += static_cast<std::size_t>(sent);
      output_->sent_of_first += static_cast<std::size_t>(sent);
      output_->bytes -= static_cast<std::size_t>(sent);
      if (!output_->pieces.front().body) output_->own_bytes -= static_cast<std::size_t>(sent);
      if (output_->sent_of_first < output_->pieces.front().view().size()) continue;
      output_->pieces.pop_front();
      output_->own_bytes -= sizeof(Output::Piece);
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

  // The bytes in this connection's own buffers; values that it shares with the store don't count.
  std::size_t buffered_bytes() const { return input_.size() + (output_ ? output_->own_bytes : 0); }

  // Bookkeeping of the server.
  std::size_t accounted_bytes = 0;  // of buffered_bytes(), in the server's sum
  std::uint32_t interest = 0;       // epoll events that it is registered for
  bool closing = false;             // to be closed at the end of the event
  bool held = false;                // not read, in a list of the server of those that wait to go on
  bool is_large = false;            // held for its next request; its end is watched
  bool watched = false;             // in the server's list of those that were blocked

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
    std::size_t own_bytes = 0;  // of these, not shared; and of the pieces
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
        output_->own_bytes += sizeof(Output::Piece);
      }
    }
    if (!body) return;
    if (output_->pieces.empty()) output_->sent_of_first = already_sent - sent_of_head;
    output_->bytes += body->size() - (already_sent - sent_of_head);
    output_->pieces.push_back({std::string(), body});
    output_->own_bytes += sizeof(Output::Piece);
  }

  UniqueFd fd_;
  std::uint32_t generation_;
  unsigned char peer_[28];  // sockaddr_in or sockaddr_in6
  RequestParser parser_;
  InputBytes input_;
  std::size_t sent_in_turn_ = 0;
  std::unique_ptr<Output> output_;
};

// All sockets are in one level-triggered epoll set of the server's own, and only that set's
// descriptor is known to Asio. So a wake-up takes a batch of events with one call. Asio's own
// sockets would cost an epoll_ctl or a fruitless recv per request.
class StoreServer::Impl : public std::enable_shared_from_this<Impl> {
  // Names a connection for later, when it may have gone and its descriptor be another's.
  struct Handle {
    int fd = -1;
    std::uint32_t generation = 0;
    Clock::time_point since;
  };

  struct Listener {
    UniqueFd fd;
    bool is_for_loopback = false;
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
        large_timer_(io),
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
        } else if (events[i].events & EPOLLRDHUP && wants_no_answer(*connection)) {
          connection->is_large = false;  // it is carried out all the same
          update_interest(*connection);
        } else if (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
          close_later(*connection, "");
        }
        if (!marked_.empty()) close_marked();
      }
    }
  }

  // Its next request, which is here.
  static bool wants_no_answer(const Connection& connection) {
    const auto opcode = static_cast<Opcode>(connection.input().front());
    return opcode == Opcode::kSet || opcode == Opcode::kMultiSet || opcode == Opcode::kAppend ||
           opcode == Opcode::kQueuePush;
  }

  void on_listener(std::size_t index) {
    int last_error = 0;
    bool has_accepted = false;
    for (int i = 0; i < kAcceptsPerEvent; ++i) {
      SocketAddress peer;
      peer.length = sizeof peer.storage;
      const int fd =
          ::accept4(listeners_[index].fd.get(), reinterpret_cast<sockaddr*>(&peer.storage),
                    &peer.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        UniqueFd connection(fd);
        has_accepted = true;
        if (listeners_[index].is_for_loopback && !is_local_address(peer)) {
          refuse_from_elsewhere(peer);
        } else if (is_welcome(fd)) {
          add_connection(std::move(connection), peer);
        }
        continue;
      }
      last_error = errno;
      if (last_error == EAGAIN || last_error == EWOULDBLOCK) return;
      if (!is_of_one_connection(last_error)) return pause_accepting(last_error);
    }
    if (!has_accepted) pause_accepting(last_error);
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
    set_socket_options(listener.get());  // Accepted sockets inherit them.
    epoll_event event = make_event(EPOLLIN, 0, static_cast<std::uint32_t>(listeners_.size()));
    if (accepting_ &&
        ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, listener.get(), &event) != 0) {
      throw_system_error("epoll_ctl", errno);
    }
    listeners_.push_back({std::move(listener), is_for_loopback});
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

  void refuse_from_elsewhere(const SocketAddress& peer) {
    if (std::exchange(said_from_elsewhere_, true)) return;
    log_warning(options_.name, ": refused a connection from ", peer.text(),
                ": all its nodes are on this machine (said once)");
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

  // Taking their waits out of the lists of all waits is work, so some connections close later.
  void close_marked() {
    std::size_t work = 0;
    while (!marked_.empty() && work < kTurnWork) {
      const int fd = marked_.back();
      marked_.pop_back();
      const auto index = static_cast<std::size_t>(fd);
      buffered_bytes_ -= connections_[index]->accounted_bytes;
      connections_[index].reset();
      --num_connections_;
      const Outcome& outcome = backend_.disconnect(static_cast<ConnectionId>(fd));
      work += outcome.work;
      deliver(outcome, nullptr);
    }
    if (!marked_.empty()) go_on_later();
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

  // Reads nothing from it until go_on().
  void hold(Connection& connection, std::deque<Handle>& list) {
    if (connection.held || connection.closing) return;
    connection.held = true;
    list.push_back(Handle{connection.fd(), connection.generation(), {}});
    update_interest(connection);
  }

  // The first of them.
  void go_on(std::deque<Handle>& list) {
    const Handle handle = list.front();
    list.pop_front();
    Connection* connection = find(handle.fd, handle.generation);
    if (!connection || connection->closing) return;
    connection->held = connection->is_large = false;
    if (!connection->blocked()) {
      connection->consume_input(consume(*connection, connection->input()));
    }
    account(*connection);
    update_interest(*connection);
    close_marked();
  }

  // Others have their turn, also on this io thread.
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

  // False: one more large request may come.
  bool wait_if_large(Connection& connection) {
    if (large_rate_.allowed(Clock::now()) > 0) return false;
    connection.is_large = true;
    hold(connection, large_);
    wait_for_large();
    return true;
  }

  // The large requests that the rate allows by now.
  void go_on_with_large() {
    waits_for_large_ = false;
    while (!large_.empty() && large_rate_.allowed(Clock::now()) > 0) go_on(large_);
    wait_for_large();
  }

  void wait_for_large() {
    if (large_.empty() || waits_for_large_) return;
    waits_for_large_ = true;
    large_timer_.expires_after(large_rate_.time_until_allowed(Clock::now()));
    large_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self && !error) self->go_on_with_large();
    });
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
      for (const Listener& listener : listeners_) {
        ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, listener.fd.get(), nullptr);
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
      ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, listeners_[i].fd.get(), &event);
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
      const std::string_view request = bytes.substr(used, connection.parser().request_bytes());
      used += request.size();
      ++num_requests_;
      const Outcome& outcome = backend_.step(id, request_, request);
      work += outcome.work;
      if (asked >= kLargeWork)
        large_rate_.spend(asked, Clock::now());  // not what others waited for
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
  boost::asio::steady_timer large_timer_;
  boost::asio::steady_timer accept_timer_;
  std::vector<Listener> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;  // Index: descriptor = ConnectionId.
  std::vector<int> marked_;                               // To be closed by close_marked().
  std::deque<Handle> handshakes_;  // Oldest first; some have shaken hands or gone.
  // Those that are held, and some that have gone since.
  std::deque<Handle> without_room_;  // The backend has no room.
  std::deque<Handle> resting_;       // They had their turn, and more requests of theirs are here.
  std::deque<Handle> large_;         // Their next request is large, the longest wait first.
  std::vector<Handle> stalled_;      // Were blocked; some read again or have gone.
  Rate large_rate_{kLargeWorkPerSecond};
  bool waits_for_large_ = false;  // on large_timer_
  bool will_go_on_ = false;       // with those that are resting
  std::vector<char> buffer_;      // For recv().
  std::string scratch_;           // Replies to the connection that is being served.
  Request request_;
  std::size_t num_connections_ = 0;
  std::function<void()> unused_;  // Set: somebody waits for the last connection's end.
  std::size_t buffered_bytes_ = 0;
  std::uint64_t num_requests_ = 0;
  std::uint32_t next_generation_ = 1;
  std::set<uid_t> refused_users_;  // were named in the log
  bool said_from_elsewhere_ = false;
  bool accepting_ = true;
  std::set<int> said_accept_errors_;
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
