// SPDX-License-Identifier: Apache-2.0
// The listener of a round's store at this node: where it is bound, and whether there is one for the
// next round. Pure: its owner binds, serves and closes. The state machine of an agent has one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/link/agent_events.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

class StoreListener {
 public:
  // `join` must outlive it. `port`: --master-port; 0: any free one.
  StoreListener(const Join& join, std::uint16_t port) : join_(join), port_(port) {}

  // No listener is ready for the next round, and none is being bound.
  bool is_wanted() const;
  // Asks for one. `local_address`: this node's end of its link to the rendezvous.
  agent_action::BindStore bind(const std::string& local_address);
  bool is_binding() const { return is_binding_; }
  // The port of the next round's listener; 0: there is none.
  std::uint16_t port() const { return bound_port_; }
  // Why there is none; empty: nothing went wrong.
  const std::string& trouble() const { return trouble_; }

  // Answers to bind(). bound(): false if nothing was asked for.
  bool bound(std::uint16_t port);
  // Another attempt, where there is one; else trouble() is set.
  std::optional<agent_action::BindStore> bind_failed(const std::string& message);

  // The round that starts is served by the listener: the next one needs another.
  void serve();
  // Whether a store was served. It is no longer.
  bool close();

 private:
  const Join& join_;
  const std::uint16_t port_;
  bool is_binding_ = false;
  std::string address_;
  std::uint16_t bound_port_ = 0;
  bool is_serving_ = false;
  std::string trouble_;
};

}  // namespace ddprun::membership
