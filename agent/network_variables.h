// SPDX-License-Identifier: Apache-2.0
// Which network interfaces the workers' libraries may use.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "common/interfaces.h"

namespace ddprun::agent {

// GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME for a node whose peers reach it by the numeric address
// `node_addr`, among interfaces with `addresses`. Gloo takes what the host's name leads to, which
// may be a loopback address: it gets the address's interface. NCCL takes "ib…" where there
// are some, else all interfaces that have an address but the loopback's and Docker's, the first one
// to meet by: where others of these are virtual, too, all such are ruled out, and all real ones
// stay, for it may move data by several. None is set where nothing is to be gained or the address
// is no interface's.
Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses);

// The same, of this machine now.
Environment network_variables(const std::string& node_addr);

}  // namespace ddprun::agent
