// SPDX-License-Identifier: Apache-2.0
// --metrics, of ddprun and ddprun-agent: taking its port. Before anything runs.
#pragma once

#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {

// Of each address of its host (empty: of all interfaces), one port; 0: a free one. Waits a few
// seconds for a name service. Throws Error that names the flag: the port is taken and by whom, the
// host is not known or no address of this machine.
std::vector<UniqueFd> bind_metrics(const Endpoint& endpoint);

// "http://127.0.0.1:9410/metrics", of what bind_metrics() took.
std::string metrics_url(const std::vector<UniqueFd>& listeners);

}  // namespace ddprun::launcher
