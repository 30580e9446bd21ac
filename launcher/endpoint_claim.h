// SPDX-License-Identifier: Apache-2.0
// This machine's addresses, and whether it serves the rendezvous at one: then the listening sockets
// are taken here.
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
  std::vector<UniqueFd> listeners;  // empty: somebody else serves; be a client
  Endpoint connect_to;              // where this node's own agent connects
  std::string note;                 // not empty: tell the user once
  bool contested = false;           // this node would serve, but a rendezvous has the port
  // Contested: where it would serve.
  std::vector<SocketAddress> addresses;
  bool everywhere = false;  // on all interfaces
};

// The node serves when the plan says so, else when one of the endpoint's addresses is on an
// interface of this machine. A name that is only known as loopback here, or a told owner without
// the address, serves on all interfaces. If the port is taken and a ddprun rendezvous answers on
// it, this node is its client. But if that is in another job's ddprun and this job has one node, it
// serves at a port of its own. The name is looked up once; one that is still unknown at the
// deadline is somebody else's. Throws Error(kUnavailable): taken by something else, which is named.
EndpointClaim claim_endpoint(const RendezvousPlan& plan, int max_nodes, Deadline deadline);

// A contested claim, tried again: empty while the port is still taken. Waits for nothing, looks no
// name up; throws nothing.
std::vector<UniqueFd> claim_again(const RendezvousPlan& plan, const EndpointClaim& contested);

// nullopt: `host` is a name, and none is looked up here. Throws Error(kSystem).
std::optional<bool> is_own_address(const std::string& host);

// This host's address as others are likely to reach it. It is the source address of its default
// route, else the first interface that is up and no loopback, else 127.0.0.1. Sends no packet.
std::string primary_address();

}  // namespace ddprun::launcher
