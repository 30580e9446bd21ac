// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/port_listener.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <utility>

#include "common/log.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/store_server/listeners.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr int kAcceptsPerEvent = 64;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::size_t kMostTroubles = 20;  // in the log
constexpr int kStoreFirstByte = 0x00;
constexpr int kTlsFirstByte = 0x16;
// A TLS alert (fatal, protocol_version), so that the peer knows at once.
constexpr unsigned char kNoTlsAlert[] = {0x15, 3, 3, 0, 2, 2, 70};

bool is_letter(int byte) { return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z'); }

constexpr int kClosed = -1;

// Returns the connection's first byte, which stays in the socket, or kClosed if the peer has closed
// it. nullopt: neither has come yet.
std::optional<int> first_sign(int connection) {
  unsigned char first = 0;
  const ssize_t received = ::recv(connection, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (received > 0) return first;
  const bool is_silent = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return received < 0 && is_silent ? std::nullopt : std::optional(kClosed);
}

}  // namespace

PortListener::PortListener(asio::io_context& io, Options options,
                           std::shared_ptr<PendingHandshakes> newcomers, Take store, Take http,
                           Take tls)
    : options_(std::move(options)),
      io_(io),
      newcomers_(std::move(newcomers)),
      store_(std::move(store)),
      http_(std::move(http)),
      tls_(std::move(tls)) {}

void PortListener::start(std::vector<UniqueFd> listeners) {
  for (UniqueFd& listener : listeners) listeners_.emplace_back(io_, listener.release());
  for (std::size_t i = 0; i < listeners_.size(); ++i) accept_from(i);
}

void PortListener::stop() {
  stopped_ = true;
  listeners_.clear();
  while (!silent_.empty()) settle(*silent_.front());
  store_ = nullptr;
  http_ = nullptr;
  tls_ = nullptr;
}

void PortListener::accept_from(std::size_t listener) {
  listeners_[listener].async_wait(Descriptor::wait_read, [self = shared_from_this(), listener](
                                                             boost::system::error_code error) {
    if (self->stopped_) return;
    const std::string trouble = error ? accept_trouble(error.value()) : self->accept_some(listener);
    if (self->stopped_) return;
    trouble.empty() ? self->accept_from(listener) : self->pause(listener, trouble);
  });
}

// Accepts waiting connections, up to a number that causes no delay. Returns why no more can be
// accepted now; empty: more can. No such reason ends the daemon or the listener.
std::string PortListener::accept_some(std::size_t listener) {
  try {
    bool is_full = false;
    const int error =
        store::accept_waiting(listeners_[listener].native_handle(), kAcceptsPerEvent,
                              [&](UniqueFd connection, const SocketAddress& peer) {
                                auto newcomer = newcomers_->admit(peer, connection);
                                is_full = !newcomer;
                                if (newcomer) accepted(std::move(connection), std::move(*newcomer));
                                return !is_full && !stopped_;
                              });
    const int trouble = is_full ? EMFILE : error;
    return trouble == 0 ? std::string() : accept_trouble(trouble);
  } catch (const std::exception& error) {
    return concat(error.what(), "; tries again (said once)");
  }
}

void PortListener::pause(std::size_t listener, const std::string& trouble) {
  if (said_troubles_.size() < kMostTroubles && said_troubles_.insert(trouble).second) {
    log_error("can't accept more connections now: ", trouble);
  }
  const auto timer = std::make_shared<asio::steady_timer>(io_, kAcceptPause);
  timer->async_wait([self = shared_from_this(), timer, listener](boost::system::error_code error) {
    if (!error && !self->stopped_) self->accept_from(listener);
  });
}

void PortListener::accepted(UniqueFd connection, Newcomer newcomer) {
  // Most clients send their first byte at once, so no wait is needed.
  if (const auto first = first_sign(connection.get())) {
    return dispatch(std::move(connection), std::move(newcomer), *first);
  }
  Descriptor descriptor(io_, connection.get());
  connection.release();
  const auto silent = std::make_shared<Silent>(
      Silent{std::move(descriptor), std::move(newcomer), asio::steady_timer(io_), false, {}});
  silent->position = silent_.insert(silent_.end(), silent);
  silent->newcomer.ended_by(
      [self = shared_from_this(), weak = std::weak_ptr<Silent>(silent)](const std::string&) {
        const auto late = weak.lock();
        if (late && !late->settled) self->settle(*late);
      });
  run_after(silent->timer, options_.first_byte_timeout, [self = shared_from_this(), silent] {
    if (silent->settled) return;
    log_about_peer(LogLevel::kInfo, "closed the connection of ",
                   peer_text(silent->connection.native_handle()), ": it sent nothing for ",
                   self->options_.first_byte_timeout.count(), " ms");
    self->settle(*silent);
  });
  await_byte(silent);
}

void PortListener::await_byte(const std::shared_ptr<Silent>& silent) {
  when_readable(silent->connection, [self = shared_from_this(), silent] {
    if (silent->settled) return;
    // Asio may report the event of an earlier descriptor, which was closed.
    const auto first = first_sign(silent->connection.native_handle());
    if (!first) return self->await_byte(silent);
    UniqueFd ready(silent->connection.release());
    Newcomer its_newcomer = std::move(silent->newcomer);
    its_newcomer.ended_by(nullptr);
    self->settle(*silent);
    self->dispatch(std::move(ready), std::move(its_newcomer), *first);
  });
}

void PortListener::settle(Silent& silent) {
  silent.settled = true;
  silent.newcomer = Newcomer();
  silent.timer.cancel();
  if (silent.connection.is_open()) silent.connection.close();
  silent_.erase(silent.position);
}

void PortListener::dispatch(UniqueFd connection, Newcomer newcomer, int first) {
  if (first == kClosed) return;
  if (first == kStoreFirstByte && options_.is_closed) {
    log_about_peer(
        LogLevel::kWarning, "closed the connection of ", peer_text(connection.get()),
        ": a c10d store client, and where there is a token or TLS this port has no store");
  } else if (first == kStoreFirstByte && connection.get() < options_.max_store_descriptor) {
    store_(std::move(connection), std::move(newcomer));
  } else if (first == kStoreFirstByte) {
    if (std::exchange(said_no_store_descriptors_, true)) return;
    log_about_peer(
        LogLevel::kError, "closed the connection of ", peer_text(connection.get()),
        ": a c10d store client, and the descriptors that are left are for agents (raise the "
        "limit of open files: ulimit -Hn; said once)");
  } else if (first == kTlsFirstByte && tls_) {
    tls_(std::move(connection), std::move(newcomer));
  } else if (is_letter(first)) {
    http_(std::move(connection), std::move(newcomer));
  } else {
    if (first == kTlsFirstByte) {
      [[maybe_unused]] const ssize_t sent =
          ::send(connection.get(), kNoTlsAlert, sizeof(kNoTlsAlert), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    const std::string why =
        first == kTlsFirstByte
            ? "it speaks TLS, which is off here"
            : concat("it speaks neither HTTP nor the store's protocol (first byte ", first, ")");
    log_about_peer(LogLevel::kWarning, "closed the connection of ", peer_text(connection.get()),
                   ": ", why);
  }
}

bool OwnConnections::await(int socket) {
  const SocketAddress peer = peer_address(socket);
  if (!is_local_address(peer)) return false;
  for (const SocketAddress& listener : listeners_) {
    const bool is_its = listener.port() == peer.port() &&
                        (listener.is_any() || listener.host_text() == peer.host_text());
    if (!is_its) continue;
    awaited_ = UniqueFd(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
    its_address_ = local_address(socket).text();
    its_peer_ = peer.text();
    return static_cast<bool>(awaited_);
  }
  return false;
}

bool OwnConnections::take(int accepted) {
  if (!awaited_ || peer_address(accepted).text() != its_address_ ||
      local_address(accepted).text() != its_peer_) {
    return false;
  }
  awaited_.reset();
  return true;
}

}  // namespace ddprun::rendezvous
