// SPDX-License-Identifier: Apache-2.0
// The value of --metrics, of ddprun and ddprun-agent. Pure: the options' readers need no sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/endpoint.h"

namespace ddprun::launcher {

// "HOST:PORT", ":PORT" (an empty host: all interfaces) or "off" (nullopt). Returns what is wrong
// with it; empty: nothing.
std::string parse_metrics(std::string_view text, std::optional<Endpoint>& to);

}  // namespace ddprun::launcher
