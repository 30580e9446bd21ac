// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_server.h"

#include <algorithm>
#include <utility>

#include "common/cgroup_limits.h"
#include "rendezvous/store_server/event_loop.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::store {

std::size_t default_store_bytes() {
  static const std::size_t bytes =
      static_cast<std::size_t>(std::min(std::uint64_t{4} << 30, usable_memory_bytes() / 4));
  return bytes;
}

StoreServer::StoreServer(boost::asio::io_context& io, StoreServerOptions options, Backend* backend)
    : loop_(std::make_shared<EventLoop>(io, std::move(options), backend)) {
  raise_file_limit();
  loop_->await_events();
}

void StoreServer::listen(UniqueFd listener, bool is_for_loopback) {
  loop_->listen(std::move(listener), is_for_loopback);
}
void StoreServer::adopt(UniqueFd connection) { loop_->adopt(std::move(connection)); }
StoreServerStats StoreServer::stats() const { return loop_->stats(); }
void StoreServer::when_unused(std::function<void()> unused) {
  loop_->when_unused(std::move(unused));
}
void StoreServer::reply(ConnectionId to, std::string_view bytes) { loop_->reply(to, bytes); }
void StoreServer::refuse(ConnectionId connection, const std::string& reason) {
  loop_->refuse(connection, reason);
}
void StoreServer::resume() { loop_->resume(); }

}  // namespace ddprun::store
