// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/unique_fd.h"
#include "rendezvous/store_server/store_proxy.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::agent {

// The store of the current round on this node, or the node's proxy of it, and the listener for the
// next round. A listener is bound before its port is announced, so no other process can take the
// port meanwhile.
class RoundStore {
 public:
  // With `send` this serves a proxy of the store in the rendezvous; `send` takes one message.
  explicit RoundStore(boost::asio::io_context& io, std::function<void(std::string)> send = nullptr);
  ~RoundStore();

  // Listens for the next round; an unused listener from before is closed. An empty address means
  // all interfaces, port 0 means any free one. A port that was asked for by number stays bound, and
  // the next round takes it over. Returns the port. Everything that the store will need is acquired
  // here, so that serve() can't fail for lack of it. Throws Error(kUnavailable) when the port is in
  // use, kResourceExhausted without a descriptor.
  std::uint16_t bind(const std::string& address, std::uint16_t port);

  // After bind(): serves an empty key space for `round` on the bound listener, and closes that of
  // an older round. `is_for_loopback`: only this machine's processes are served, whatever address
  // is bound.
  void serve(std::uint64_t round, bool is_for_loopback);

  // Calls `unused` once, from the io context: when the served key space has no client any more,
  // after `limit`, or soon when none is served. There is no call after close() or destruction.
  void when_unused(std::chrono::milliseconds limit, std::function<void()> unused);

  // These are for a proxy: the connection to the rendezvous, and its messages (store_proxy.h).
  void linked();
  void unlinked();
  void received(std::string_view message);

  // Closes the key space of `round`; does nothing for another round.
  void close(std::uint64_t round);

 private:
  boost::asio::io_context& io_;
  UniqueFd listener_;        // for the next round
  UniqueFd fixed_listener_;  // kept after a port was asked for by number
  std::uint16_t fixed_port_ = 0;
  const std::function<void(std::string)> send_;  // empty: the store is here
  std::unique_ptr<store::StoreProxy> proxy_;     // of round_
  std::unique_ptr<store::StoreProxy> next_proxy_;
  bool is_linked_ = false;
  std::unique_ptr<store::StoreServer> server_;
  std::unique_ptr<store::StoreServer> next_server_;  // empty; for listener_
  std::uint64_t round_ = 0;                          // of server_, or of proxy_
  boost::asio::steady_timer patience_;
  std::function<void()> unused_;
};

}  // namespace ddprun::agent
