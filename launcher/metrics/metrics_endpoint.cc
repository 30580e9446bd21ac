// SPDX-License-Identifier: Apache-2.0
#include "launcher/metrics/metrics_endpoint.h"

#include <chrono>

#include "common/error.h"
#include "common/log.h"
#include "common/name_lookup.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::seconds kNamePatience{5};

std::vector<UniqueFd> take_port(const Endpoint& endpoint) {
  if (endpoint.host.empty()) return rendezvous::bind_everywhere(endpoint.port);
  const NameLookup found = look_up(endpoint, Deadline::after(kNamePatience));
  if (found.addresses.empty()) throw Error(ErrorCode::kUnavailable, found.failure);
  return rendezvous::bind_addresses(endpoint, found.addresses);
}

}  // namespace

std::vector<UniqueFd> bind_metrics(const Endpoint& endpoint) {
  try {
    return take_port(endpoint);
  } catch (const Error& error) {
    throw Error(error.code(), concat("--metrics=", to_string(endpoint), ": ", error.what()));
  }
}

std::string metrics_url(const std::vector<UniqueFd>& listeners) {
  return concat("http://", local_address(listeners.front().get()).text(), "/metrics");
}

}  // namespace ddprun::launcher
