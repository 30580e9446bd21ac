// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/store_server/file_limit.h"
#include "rendezvous/store_server/peer_user.h"
#include "rendezvous/store_server/store_server_impl.h"

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

RequestLimits limits_of(const StoreServerOptions& options) {
  RequestLimits limits;
  limits.max_key_bytes = options.max_key_bytes;
  limits.max_value_bytes = options.max_value_bytes;
  limits.max_keys_per_request = options.max_keys_per_request;
  return limits;
}

}  // namespace

// ---- StoreServer ----

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options), nullptr)) {
  raise_file_limit();
  impl_->start();
}

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerOptions options, Backend& backend)
    : impl_(std::make_shared<Impl>(io, std::move(options), &backend)) {
  raise_file_limit();
  impl_->start();
}

StoreServer::~StoreServer() = default;
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

// ---- events ----

StoreServer::Impl::Impl(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
    : options_(std::move(options)),
      limits_(limits_of(options_)),
      local_(backend ? nullptr : std::make_unique<LocalBackend>(options_.max_total_bytes)),
      backend_(backend ? *backend : *local_),
      epoll_(io, make_epoll().release()),
      sweep_timer_(io),
      accept_timer_(io),
      buffer_(kReceiveBytes) {}

void StoreServer::Impl::await_events() {
  epoll_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                    [weak = weak_from_this()](const boost::system::error_code& error) {
                      const std::shared_ptr<Impl> self = weak.lock();
                      if (!self || error) return;
                      self->take_events();
                      self->await_events();
                    });
}

void StoreServer::Impl::take_events() {
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

void StoreServer::Impl::on_listener(std::size_t index) {
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

void StoreServer::Impl::on_readable(Connection& connection) {
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

void StoreServer::Impl::on_writable(Connection& connection) {
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

void StoreServer::Impl::listen(UniqueFd listener) {
  set_socket_options(listener.get());  // Accepted sockets inherit them.
  epoll_event event = make_event(EPOLLIN, 0, static_cast<std::uint32_t>(listeners_.size()));
  if (accepting_ &&
      ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, listener.get(), &event) != 0) {
    throw_system_error("epoll_ctl", errno);
  }
  listeners_.push_back(std::move(listener));
}

void StoreServer::Impl::adopt(UniqueFd connection) {
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

bool StoreServer::Impl::is_welcome(int fd) {
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

void StoreServer::Impl::add_connection(UniqueFd fd, const SocketAddress& peer) {
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

Connection* StoreServer::Impl::find(int fd, std::uint32_t generation) const {
  const auto index = static_cast<std::size_t>(fd);
  if (index >= connections_.size() || !connections_[index]) return nullptr;
  Connection* connection = connections_[index].get();
  return connection->generation() == generation ? connection : nullptr;
}

void StoreServer::Impl::close_later(Connection& connection, const std::string& reason) {
  if (connection.closing) return;
  connection.closing = true;
  marked_.push_back(connection.fd());
  if (!reason.empty()) {
    log_warning(options_.name, ": closed the connection of ", connection.peer_text(), ": ", reason);
  }
}

void StoreServer::Impl::close_marked() {
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

void StoreServer::Impl::when_unused(std::function<void()> unused) {
  unused_ = std::move(unused);
  say_if_unused();
}

void StoreServer::Impl::say_if_unused() {
  if (!unused_ || num_connections_ > 0) return;
  // Not now: the answer may be our end.
  boost::asio::post(epoll_.get_executor(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->unused_ || self->num_connections_ > 0) return;
    std::exchange(self->unused_, nullptr)();
  });
}

void StoreServer::Impl::update_interest(Connection& connection) {
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

void StoreServer::Impl::hold(Connection& connection) {
  if (connection.held || connection.closing) return;
  connection.held = true;
  held_.push_back(Handle{connection.fd(), connection.generation(), {}});
  update_interest(connection);
}

void StoreServer::Impl::resume() {
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

void StoreServer::Impl::account(Connection& connection) {
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

void StoreServer::Impl::pause_accepting(int error_number) {
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

void StoreServer::Impl::resume_accepting() {
  if (accepting_) return;
  accepting_ = true;
  accept_timer_.cancel();
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    epoll_event event = make_event(EPOLLIN, 0, static_cast<std::uint32_t>(i));
    ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, listeners_[i].get(), &event);
  }
}

StoreServerStats StoreServer::Impl::stats() const {
  StoreServerStats stats;
  stats.num_connections = num_connections_;
  stats.num_keys = backend_.num_keys();
  stats.content_bytes = backend_.content_bytes();
  stats.num_requests = num_requests_;
  stats.num_slow_readers = stalled_.size();
  return stats;
}

// ---- requests and replies ----

std::size_t StoreServer::Impl::consume(Connection& connection, std::string_view bytes) {
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

void StoreServer::Impl::deliver(const Outcome& outcome, Connection* current) {
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

void StoreServer::Impl::reply(ConnectionId to, std::string_view bytes) {
  Connection* connection = to < connections_.size() ? connections_[to].get() : nullptr;
  if (!connection || connection->closing) return;
  send(*connection, bytes, nullptr);
  close_marked();
}

void StoreServer::Impl::refuse(ConnectionId id, const std::string& reason) {
  Connection* connection = id < connections_.size() ? connections_[id].get() : nullptr;
  if (!connection) return;
  close_later(*connection, reason);
  close_marked();
}

void StoreServer::Impl::send_gathered(Connection& connection, const SharedValue& body) {
  if (scratch_.empty() && !body) return;
  if (!connection.closing) send(connection, scratch_, body);
  scratch_.clear();
  if (scratch_.capacity() > kKeptBytes) scratch_.shrink_to_fit();
}

void StoreServer::Impl::send(Connection& connection, std::string_view head,
                             const SharedValue& body) {
  if (!connection.send(head, body)) {
    close_later(connection, "");
  } else if (connection.blocked()) {
    account(connection);
    update_interest(connection);
  }
}

// ---- timers ----

void StoreServer::Impl::arm_sweep() {
  if (sweeping_) return;
  sweeping_ = true;
  const milliseconds shorter = std::min(options_.handshake_timeout, options_.stall_timeout);
  sweep_timer_.expires_after(std::clamp(shorter / 4, milliseconds(5), milliseconds(5000)));
  sweep_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const std::shared_ptr<Impl> self = weak.lock();
    if (self && !error) self->sweep();
  });
}

void StoreServer::Impl::sweep() {
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

}  // namespace ddprun::store
