// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/listeners.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/peer_user.h"

namespace ddprun::store {
namespace {

constexpr int kAcceptsPerEvent = 256;

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace

void set_socket_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 120);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Listeners::Listeners(int epoll, std::string name, std::optional<uid_t> only_user)
    : epoll_(epoll), name_(std::move(name)), only_user_(only_user) {}

void Listeners::add(UniqueFd listener, bool is_for_loopback) {
  set_socket_options(listener.get());  // accepted sockets inherit them
  listeners_.push_back({std::move(listener), is_for_loopback});
  if (is_paused_ || watch(listeners_.size() - 1)) return;
  const int error = errno;
  listeners_.pop_back();
  throw_system_error("epoll_ctl", error);
}

int accept_waiting(int listener, int most,
                   const std::function<bool(UniqueFd, const SocketAddress&)>& take) {
  int last_error = 0;
  bool has_accepted = false;
  for (int i = 0; i < most; ++i) {
    SocketAddress peer;
    peer.length = sizeof peer.storage;
    UniqueFd connection(::accept4(listener, reinterpret_cast<sockaddr*>(&peer.storage),
                                  &peer.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      has_accepted = true;
      if (!take(std::move(connection), peer)) return 0;
      continue;
    }
    last_error = errno;
    if (last_error == EAGAIN || last_error == EWOULDBLOCK) return 0;
    if (!is_of_one_connection(last_error)) return last_error;
  }
  return has_accepted ? 0 : last_error;
}

int Listeners::accept(std::size_t index, const Take& take) {
  const Listener& listener = listeners_[index];
  return accept_waiting(listener.fd.get(), kAcceptsPerEvent,
                        [&](UniqueFd connection, const SocketAddress& peer) {
                          if (is_welcome(listener, connection.get(), peer))
                            take(std::move(connection), peer);
                          return true;
                        });
}

bool Listeners::is_welcome(const Listener& listener, int connection, const SocketAddress& peer) {
  if (listener.is_for_loopback && !is_local_address(peer)) {
    if (!std::exchange(said_from_elsewhere_, true)) {
      log_about_peer(LogLevel::kWarning, name_, ": refused a connection from ", peer.text(),
                     ": all its nodes are on this machine (said once)");
    }
    return false;
  }
  if (!only_user_) return true;
  const auto user = peer_user(connection);
  if (user == only_user_) return true;
  // Without a user the connection has already ended, and nothing is logged.
  if (user && refused_users_.insert(*user).second) {
    log_about_peer(LogLevel::kWarning, name_, ": refused a connection of user ", *user,
                   ": it is for user ", *only_user_, " alone (said once)");
  }
  return false;
}

void Listeners::pause(int accept_error, std::size_t num_connections) {
  if (said_errors_.insert(accept_error).second) {
    log_error(name_, ": can't accept more than ", num_connections,
              " connections now: ", accept_trouble(accept_error));
  }
  if (std::exchange(is_paused_, true)) return;
  for (const Listener& listener : listeners_) {
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, listener.fd.get(), nullptr);
  }
}

void Listeners::resume() {
  if (!std::exchange(is_paused_, false)) return;
  for (std::size_t i = 0; i < listeners_.size(); ++i) watch(i);
}

bool Listeners::watch(std::size_t index) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = index;
  return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, listeners_[index].fd.get(), &event) == 0;
}

}  // namespace ddprun::store
