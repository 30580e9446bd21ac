// SPDX-License-Identifier: Apache-2.0
#include "agent/round_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/error.h"
#include "common/peer_user.h"
#include "common/port_holder.h"
#include "common/socket.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {

namespace {

UniqueFd duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
  return copy;
}

UniqueFd listen_anywhere(std::uint16_t port) {
  try {
    return listen_or_name_holder(resolve({.host = "::", .port = port}).front());  // IPv4 too
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;  // no IPv6 here
    return listen_or_name_holder(resolve({.host = "0.0.0.0", .port = port}).front());
  }
}

}  // namespace

RoundStore::RoundStore(boost::asio::io_context& io, std::function<void(std::string)> send)
    : io_(io), send_(std::move(send)), patience_(io) {}
RoundStore::~RoundStore() = default;

std::uint16_t RoundStore::bind(const std::string& address, std::uint16_t port) {
  listener_.reset();
  if (send_ && !next_proxy_) {
    if (!peer_users_are_known()) {
      throw Error(ErrorCode::kUnavailable,
                  "the kernel does not say whose a connection is (sock_diag(7)), so the workers' "
                  "store could not be kept from other users here. Load its modules inet_diag and "
                  "tcp_diag, or give --store=direct, where there is no token and no TLS");
    }
    store::StoreServerOptions options;
    options.name = "the store's proxy";
    options.only_user = ::geteuid();
    next_proxy_ = std::make_unique<store::StoreProxy>(io_, std::move(options), send_);
  }
  if (!next_server_ && !send_) {
    store::StoreServerOptions options;
    options.name = "the round's store";
    next_server_ = std::make_unique<store::StoreServer>(io_, std::move(options));
  }
  if (port != 0 && port == fixed_port_) {
    listener_ = duplicate(fixed_listener_);
    return port;
  }
  listener_ = address.empty()
                  ? listen_anywhere(port)
                  : listen_or_name_holder(resolve({.host = address, .port = port}).front());
  if (port != 0) {
    fixed_listener_ = duplicate(listener_);
    fixed_port_ = port;
  }
  return local_address(listener_.get()).port();
}

void RoundStore::serve(std::uint64_t round, bool is_for_loopback) {
  round_ = round;
  if (send_) {
    proxy_ = std::move(next_proxy_);
    proxy_->serve(round, std::move(listener_));
    if (is_linked_) proxy_->linked();
    return;
  }
  server_ = std::move(next_server_);
  server_->listen(std::move(listener_), is_for_loopback);
}

void RoundStore::linked() {
  is_linked_ = true;
  if (proxy_) proxy_->linked();
}

void RoundStore::unlinked() {
  is_linked_ = false;
  if (proxy_) proxy_->unlinked();
}

void RoundStore::received(std::string_view message) {
  if (proxy_) proxy_->received(message);
}

void RoundStore::when_unused(std::chrono::milliseconds limit, std::function<void()> unused) {
  unused_ = std::move(unused);
  const auto say = [this] {
    patience_.cancel();
    if (unused_) std::exchange(unused_, nullptr)();
  };
  // Only this node's workers use a proxy, and they have gone.
  run_after(patience_, server_ ? limit : std::chrono::milliseconds{0}, [say] { say(); });
  if (server_) server_->when_unused(say);
}

void RoundStore::close(std::uint64_t round) {
  if (round != round_) return;
  server_.reset();
  proxy_.reset();
}

}  // namespace ddprun::agent
