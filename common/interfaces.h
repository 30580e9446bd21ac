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
  bool is_loopback = false;  // of the interface, whatever the address
};

// Returns IPv4 and IPv6 addresses, in the kernel's order; an interface is listed once for each of
// its addresses. Empty if the kernel doesn't say.
std::vector<InterfaceAddress> interface_addresses();

// Whether the interface "lo" is up; true also if the kernel doesn't say.
bool loopback_is_up();
// Throws Error(kUnavailable), which says how to set it up, if it is down.
void need_loopback();

// Returns the name of the interface that has this numeric address; empty: none.
std::string interface_of(const std::string& address);

// Returns the beginning of the names of this interface's kind, if it leads to no other host. It is
// the loopback's, or was made for containers or virtual machines ("veth"). Empty: it is
// another one.
std::string virtual_kind(const std::string& name);
inline bool is_virtual_interface(const std::string& name) { return !virtual_kind(name).empty(); }

}  // namespace ddprun
