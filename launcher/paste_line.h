// SPDX-License-Identifier: Apache-2.0
// The error of a job of several nodes that nobody told where to meet: the exact line to paste.
#pragma once

#include <string>
#include <vector>

#include "launcher/launch_config.h"

namespace ddprun::launcher {

// Several lines: what is missing, the command for each node with `address` (this host's) filled in,
// the other ways, and what was found but could not be used. Pure.
std::string no_endpoint_message(const LaunchConfig& config, const std::string& address,
                                const std::vector<std::string>& looked_at);

// This host's address as others are likely to reach it: the source address of its default route,
// else the first interface that is up and no loopback, else 127.0.0.1. Sends no packet.
std::string primary_address();

}  // namespace ddprun::launcher
