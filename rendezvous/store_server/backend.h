// SPDX-License-Identifier: Apache-2.0
// Who carries out the requests of a StoreServer's connections: a StoreState in this process
// (LocalBackend), or a store elsewhere (StoreProxy). io thread only.
#pragma once

#include <cstddef>
#include <string_view>

#include "rendezvous/store/store_state.h"

namespace ddprun::store {

class Backend {
 public:
  virtual ~Backend() = default;

  // `bytes`: the request as it came. The replies may come later (StoreServer::reply). The reference
  // is valid until the next call.
  virtual const Outcome& step(ConnectionId from, const Request& request,
                              std::string_view bytes) = 0;
  virtual const Outcome& disconnect(ConnectionId connection) = 0;

  // False: no request can be taken now; StoreServer::resume() follows.
  virtual bool has_room() const = 0;

  virtual std::size_t num_keys() const = 0;
  virtual std::size_t content_bytes() const = 0;  // keys and values
  virtual std::size_t total_bytes() const = 0;    // what counts against the server's limit
};

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

}  // namespace ddprun::store
