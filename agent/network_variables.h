// SPDX-License-Identifier: Apache-2.0
// Which network interfaces the workers' libraries may use.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "common/interfaces.h"

namespace ddprun::agent {

// GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME for a node whose peers reach it by the numeric address
// `node_addr`, among interfaces with `addresses`.
//
// Gloo takes the address of the host's name, which may be a loopback address. It gets the address's
// interface, if the address is that interface's first: of an interface Gloo takes the first.
//
// NCCL takes "ib…" if there are any. Else it takes all interfaces with an address, except the
// loopback's and Docker's, and meets by the first. If some of these are virtual, all virtual kinds
// are ruled out (NCCL reads at most 16 names, each the beginning of some). All real ones stay, for
// NCCL may move data by several.
//
// Neither is set if that gains nothing, or if the address is no interface's.
Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses);

// The same, of this machine now.
Environment network_variables(const std::string& node_addr);

}  // namespace ddprun::agent
