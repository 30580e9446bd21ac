// SPDX-License-Identifier: Apache-2.0
// Carries out a StoreServer's requests: a StoreState here (LocalBackend), or a store elsewhere
// (StoreProxy).
#pragma once

#include <cstddef>
#include <string_view>

#include "rendezvous/store/store_state.h"

namespace ddprun::store {

class Backend {
 public:
  virtual ~Backend() = default;

  // About what step() will take, as Outcome::work counts it; 0: it takes it elsewhere.
  virtual std::size_t work_of(ConnectionId from, const Request& request) const = 0;

  // `bytes`: the request as it came. Replies may come later (StoreServer::reply()). The reference
  // holds until the next call.
  virtual const Outcome& step(ConnectionId from, const Request& request,
                              std::string_view bytes) = 0;
  virtual const Outcome& disconnect(ConnectionId connection) = 0;

  // False: no request can be taken now; StoreServer::resume() follows.
  virtual bool has_room() const = 0;

  virtual std::size_t num_keys() const = 0;
  virtual std::size_t content_bytes() const = 0;  // keys and values
  virtual std::size_t total_bytes() const = 0;    // what counts against the server's limit
};

}  // namespace ddprun::store
