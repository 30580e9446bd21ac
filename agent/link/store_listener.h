// SPDX-License-Identifier: Apache-2.0
// The state of a round's store listener at this node: where it is bound, and whether there is one
// for the next round. The owner binds, serves and closes. An agent's state machine has one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// Binds the port of the next round's store and listens on it. An empty address means all
// interfaces, port 0 means any free one. Closes a listener that was bound before and not yet
// served. Returns the port; throws Error.
using BindStore = std::function<std::uint16_t(const std::string& address, std::uint16_t port)>;

class StoreListener {
 public:
  // `join` must outlive it. `port`: --master-port; 0: any free one.
  StoreListener(const Join& join, std::uint16_t port, BindStore bind);

  // Binds a listener for the next round, unless there is one, or the store is at the endpoint. On
  // failure trouble() is set. `local_address`: this node's end of its link to the rendezvous.
  void prepare(const std::string& local_address);
  // The port of the next round's listener; 0: there is none.
  std::uint16_t port() const { return bound_port_; }
  // Returns why there is none; empty: nothing went wrong.
  const std::string& trouble() const { return trouble_; }

  // Called when the round starts: the listener serves it, and the next round needs another.
  void serve();
  // Returns whether a store was served. None is served after this call.
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
