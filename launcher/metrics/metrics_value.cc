// SPDX-License-Identifier: Apache-2.0
#include "launcher/metrics/metrics_value.h"

namespace ddprun::launcher {

// "HOST" alone might be meant for any port, or for a default one: neither is guessed.
std::string parse_metrics(std::string_view text, std::optional<Endpoint>& to) {
  to.reset();
  if (text == "off") return {};
  const auto endpoint = parse_endpoint(text, 0), other = parse_endpoint(text, 1);
  if (!endpoint || endpoint->port != other->port) {
    return "wants HOST:PORT, :PORT (on all interfaces) or off";
  }
  to = endpoint;
  return {};
}

}  // namespace ddprun::launcher
