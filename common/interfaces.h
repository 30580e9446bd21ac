// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

#include "common/socket.h"

namespace ddprun {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  SocketAddress address;
  bool is_up = false;
  bool is_loopback = false;  // the interface, whatever the address
};

// IPv4 and IPv6, in the kernel's order; an interface with several is there for each. Empty where
// the kernel doesn't say.
std::vector<InterfaceAddress> interface_addresses();

// The interface "lo" is up; also where the kernel doesn't say.
bool loopback_is_up();

// The name of the interface that has this numeric address; empty: none.
std::string interface_of(const std::string& address);

// How the names of such interfaces begin: the loopback's, or made for containers or virtual
// machines ("veth"); it leads to no other host. Empty: it is none.
std::string virtual_kind(const std::string& name);
inline bool is_virtual_interface(const std::string& name) { return !virtual_kind(name).empty(); }

}  // namespace ddprun
