// SPDX-License-Identifier: Apache-2.0
#include "agent/link/store_listener.h"

#include <utility>
#include <vector>

#include "common/endpoint.h"
#include "common/error.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {
namespace {

// Returns the addresses to bind, the best first.
std::vector<std::string> addresses(const Join& join, const std::string& local_address) {
  if (join.settings.store == StoreMode::kProxy) return {kProxyAddr};
  // An address in front of this node (NAT) can't be bound: peers' connections arrive at another
  // one.
  if (!join.advertised_addr.empty()) return {join.advertised_addr, ""};
  // A loopback address means that the rendezvous is on this machine; other nodes may be elsewhere.
  if (names_loopback(local_address) && join.settings.max_nodes > 1) return {""};
  return {local_address};
}

}  // namespace

StoreListener::StoreListener(const Join& join, std::uint16_t port, BindStore bind)
    : join_(join), port_(port), bind_(std::move(bind)) {}

void StoreListener::prepare(const std::string& local_address) {
  if (bound_port_ != 0 || store_is_at_endpoint(join_.settings)) return;
  for (const std::string& address : addresses(join_, local_address)) {
    try {
      bound_port_ = bind_(address, port_);
      trouble_.clear();
      return;
    } catch (const Error& error) {
      trouble_ = std::string("can't serve the round's store: ") + error.what();
    }
  }
}

void StoreListener::serve() {
  is_serving_ = true;
  bound_port_ = 0;
}

bool StoreListener::close() { return std::exchange(is_serving_, false); }

}  // namespace ddprun::membership
