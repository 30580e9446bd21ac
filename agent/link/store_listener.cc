// SPDX-License-Identifier: Apache-2.0
#include "agent/link/store_listener.h"

#include <utility>

#include "common/endpoint.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {

bool StoreListener::is_wanted() const {
  return !store_is_at_endpoint(join_.settings) && bound_port_ == 0 && !is_binding_;
}

agent_action::BindStore StoreListener::bind(const std::string& local_address) {
  is_binding_ = true;
  if (join_.settings.store == StoreMode::kProxy) {
    address_ = kProxyAddr;
    return {address_, port_};
  }
  address_ = join_.advertised_addr;
  // Over loopback this node is beside the rendezvous, and others may come from elsewhere.
  if (address_.empty() && !(names_loopback(local_address) && join_.settings.max_nodes > 1)) {
    address_ = local_address;
  }
  return {address_, port_};
}

bool StoreListener::bound(std::uint16_t port) {
  if (!std::exchange(is_binding_, false)) return false;
  bound_port_ = port;
  trouble_.clear();
  return true;
}

std::optional<agent_action::BindStore> StoreListener::bind_failed(const std::string& message) {
  if (!address_.empty() && address_ == join_.advertised_addr) {
    address_.clear();  // an address in front of this node (NAT): peers come in elsewhere
    return agent_action::BindStore{address_, port_};
  }
  is_binding_ = false;
  trouble_ = "can't serve the round's store: " + message;
  return std::nullopt;
}

void StoreListener::serve() {
  is_serving_ = true;
  bound_port_ = 0;
}

bool StoreListener::close() { return std::exchange(is_serving_, false); }

}  // namespace ddprun::membership
