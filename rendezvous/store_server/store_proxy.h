// SPDX-License-Identifier: Apache-2.0
// A node's end of a round's store that lives in the rendezvous: a c10d server on loopback, whose
// requests go over the agent's one connection (docs/store-proxy.md). While that is down, requests
// wait. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/unique_fd.h"
#include "rendezvous/store_server/store_server.h"

namespace ddprun::store {

class StoreProxy {
 public:
  // `send` takes one message for the rendezvous; it is called while there is a connection to it,
  // never from inside a call of this class. Not linked yet.
  StoreProxy(boost::asio::io_context& io, StoreServerOptions options,
             std::function<void(std::string message)> send);
  ~StoreProxy();
  StoreProxy(const StoreProxy&) = delete;
  StoreProxy& operator=(const StoreProxy&) = delete;

  // Serves `round` on `listener`. Once.
  void serve(std::uint64_t round, UniqueFd listener);

  // As StoreServer's.
  void when_unused(std::function<void()> unused);
  StoreServerStats stats() const;

  // The rendezvous knows this node on a new connection: what it has not acknowledged goes again.
  void linked();
  // The connection has ended.
  void unlinked();
  // From the rendezvous; another round's is ignored. Throws Error(kProtocol).
  void received(std::string_view message);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // pending handlers hold it weakly
};

}  // namespace ddprun::store
