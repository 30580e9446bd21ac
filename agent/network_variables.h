// SPDX-License-Identifier: Apache-2.0
// Which network interfaces the workers' libraries may use.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "common/interfaces.h"

namespace ddprun::agent {

// Returns GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and NCCL_SOCKET_IFNAME for a node whose peers reach
// it by the numeric address `node_addr`. `addresses` are those of its interfaces.
//
// By default Gloo and TensorPipe (PyTorch's RPC) take the address of the host's name, which may be
// a loopback address. So their variables name the interface of `node_addr`, if that is the
// interface's first address: they take only an interface's first one.
//
// NCCL takes "ib…" if there are any. Else it takes all interfaces with an address, except the
// loopback's and Docker's, and its ranks meet by the first. If some of these are virtual, the
// variable excludes all kinds of virtual interfaces (NCCL reads at most 16 names, each the
// beginning of some). All real interfaces stay, since NCCL may move data by several.
//
// A variable is not set if that gains nothing, or if no interface has the address.
Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses);

// Returns the same for this machine's present interfaces.
Environment network_variables(const std::string& node_addr);

}  // namespace ddprun::agent
