// SPDX-License-Identifier: Apache-2.0
// Finds this machine's addresses, and whether it serves the rendezvous at one of them. If it does,
// takes the listening sockets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/socket.h"
#include "common/unique_fd.h"
#include "launcher/endpoint_discovery.h"

namespace ddprun::launcher {

struct EndpointClaim {
  std::vector<UniqueFd> listeners;  // empty: another process serves, and this node is a client
  Endpoint connect_to;              // this node's agent connects here
  std::string note;                 // to be printed once; empty: nothing to tell
  bool contested = false;           // this node would serve, but a rendezvous has the port
  // If contested: the addresses at which it would serve.
  std::vector<SocketAddress> addresses;
  bool everywhere = false;  // on all interfaces
};

// The node serves if the plan says so, else if an interface of this machine has one of the
// endpoint's addresses. It serves on all interfaces if the name only resolves to loopback here, or
// if the plan's owner lacks the address. If a ddprun rendezvous has the port, this node is its
// client. But a job of one node serves at a port of its own if that rendezvous is in another job's
// ddprun. The name is looked up once. A name that is still unknown at the deadline belongs to
// another node. Throws Error(kUnavailable) if something else has the port, and names it.
EndpointClaim claim_endpoint(const RendezvousPlan& plan, int max_nodes, Deadline deadline);

// Tries a contested claim again: empty while the port is still taken. Doesn't wait, looks no name
// up, throws nothing.
std::vector<UniqueFd> claim_again(const RendezvousPlan& plan, const EndpointClaim& contested);

// Whether this machine has the address. nullopt: `host` is a name, and isn't looked up. Throws
// Error(kSystem).
std::optional<bool> is_own_address(const std::string& host);

// Returns the address at which others probably reach this host: the source address of its default
// route. Else it is that of the first interface that is up and no loopback, else 127.0.0.1. Sends
// no packet.
std::string primary_address();

}  // namespace ddprun::launcher
