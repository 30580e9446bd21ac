// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_claim.h"

#include <algorithm>
#include <chrono>

#include "common/error.h"
#include "common/log.h"
#include "common/name_lookup.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds kProbeTimeout{2'000};

// Loopback as the user wrote it, as against a name that merely resolves to it.
bool means_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

// Where this node serves: nothing is looked up again, since the name service may be silent by then.
struct Ownership {
  bool ours = false;
  bool everywhere = false;  // listen on all interfaces
  std::vector<SocketAddress> addresses;
};

Ownership decide(const RendezvousPlan& plan, int max_nodes, Deadline deadline) {
  if (plan.is_host == false) return {};
  // None where the name isn't known here: the link will try again.
  Ownership owner;
  owner.addresses = look_up(plan.endpoint, deadline).addresses;
  const auto& addresses = owner.addresses;
  const auto is_loopback = [](const SocketAddress& address) { return address.is_loopback(); };
  const bool is_here = std::any_of(addresses.begin(), addresses.end(), is_local_address);
  if (!is_here && !plan.is_host) return {};
  const bool only_loopback = std::all_of(addresses.begin(), addresses.end(), is_loopback);
  const bool hidden = only_loopback && max_nodes > 1 && !means_loopback(plan.endpoint.host);
  owner.ours = true;
  owner.everywhere = !is_here || hidden;
  return owner;
}

std::vector<UniqueFd> take(const RendezvousPlan& plan, bool everywhere,
                           const std::vector<SocketAddress>& addresses) {
  if (everywhere) return rendezvous::bind_everywhere(plan.endpoint.port);
  return rendezvous::bind_addresses(plan.endpoint, addresses);
}

}  // namespace

EndpointClaim claim_endpoint(const RendezvousPlan& plan, int max_nodes, Deadline deadline) {
  EndpointClaim claim;
  claim.connect_to = plan.endpoint;
  const Ownership owner = decide(plan, max_nodes, deadline);
  if (!owner.ours && plan.endpoint.port == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                concat(to_string(plan.endpoint), " (", plan.origin,
                       "): this node doesn't serve there, and nobody listens at port 0: give the "
                       "port that the rendezvous has"));
  }
  if (!owner.ours) return claim;
  const auto bind = [&] { claim.listeners = take(plan, owner.everywhere, owner.addresses); };
  try {
    bind();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    // A daemon, or another ddprun of this job on this machine?
    claim.contested = rendezvous::answers_as_rendezvous(owner.addresses, kProbeTimeout);
    if (claim.contested) {
      claim.everywhere = owner.everywhere;
      claim.addresses = owner.addresses;
      return claim;
    }
    bind();  // an earlier ddprun may have ended meanwhile
  }
  claim.connect_to.port = local_address(claim.listeners.front().get()).port();
  if (owner.everywhere) {
    claim.connect_to.host = "127.0.0.1";
    claim.note = plan.endpoint.host + " is no address of an interface here: serving the " +
                 "rendezvous on all interfaces, port " + std::to_string(claim.connect_to.port);
  }
  return claim;
}

std::vector<UniqueFd> claim_again(const RendezvousPlan& plan, const EndpointClaim& contested) {
  try {
    return take(plan, contested.everywhere, contested.addresses);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace ddprun::launcher
