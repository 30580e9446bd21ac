// SPDX-License-Identifier: Apache-2.0
// The listener of a round's store at this node: where it is bound, and whether there is one for the
// next round. Its owner binds, serves and closes. The state machine of an agent has one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// Binds, and listens on, the port of the next round's store. An empty address means all interfaces,
// port 0 any free one. Closes a listener that was bound before and not yet served. Returns the
// port; throws Error.
using BindStore = std::function<std::uint16_t(const std::string& address, std::uint16_t port)>;

class StoreListener {
 public:
  // `join` must outlive it. `port`: --master-port; 0: any free one.
  StoreListener(const Join& join, std::uint16_t port, BindStore bind);

  // Binds one for the next round, unless there is one or the store is at the endpoint. On failure
  // trouble() is set. `local_address`: this node's end of its link to the rendezvous.
  void prepare(const std::string& local_address);
  // The port of the next round's listener; 0: there is none.
  std::uint16_t port() const { return bound_port_; }
  // Why there is none; empty: nothing went wrong.
  const std::string& trouble() const { return trouble_; }

  // The round that starts is served by the listener: the next one needs another.
  void serve();
  // Whether a store was served. It is no longer.
  bool close();

 private:
  const Join& join_;
  const std::uint16_t port_;
  const BindStore bind_;
  std::uint16_t bound_port_ = 0;
  bool is_serving_ = false;
  std::string trouble_;
};

}  // namespace ddprun::membership
