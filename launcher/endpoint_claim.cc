// SPDX-License-Identifier: Apache-2.0
#include "launcher/endpoint_claim.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "common/error.h"
#include "common/interfaces.h"
#include "common/port_holder.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "rendezvous/daemon/daemon.h"

namespace ddprun::launcher {
namespace {

// How long what has the port may take to say what it is. A ddprun says it, but has little of a busy
// machine at first.
constexpr std::chrono::milliseconds kProbeTimeout{2'000}, kProbeTimeoutOfDdprun{20'000};

// Whether and where this node serves. It keeps the addresses, since a later look-up might get no
// answer.
struct Ownership {
  bool ours = false;
  bool everywhere = false;   // listen on all interfaces
  bool on_loopback = false;  // the endpoint is any address, and there is one node
  std::vector<SocketAddress> addresses;
};

Ownership decide(const RendezvousPlan& plan, int max_nodes, Deadline deadline) {
  if (plan.is_host == false) return {};
  // If the name isn't known here, there are no addresses, and the link will try again.
  Ownership owner;
  owner.addresses = look_up(plan.endpoint, deadline).addresses;
  const auto is_any = [](const SocketAddress& address) { return address.is_any(); };
  if (!plan.is_host && std::ranges::any_of(owner.addresses, is_any)) {
    if (max_nodes > 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  concat(to_string(plan.endpoint), " (", plan.origin,
                         "): other nodes can't reach that address: give the name or address of the "
                         "node that serves, as in --rdzv-endpoint=",
                         host_name(), ":", plan.endpoint.port));
    }
    owner.addresses = resolve({.host = "127.0.0.1", .port = plan.endpoint.port});
    owner.on_loopback = true;
  }
  const auto& addresses = owner.addresses;
  const auto is_loopback = [](const SocketAddress& address) { return address.is_loopback(); };
  const bool is_here = std::any_of(addresses.begin(), addresses.end(), is_local_address);
  if (!is_here && !plan.is_host) return {};
  const bool only_loopback = std::all_of(addresses.begin(), addresses.end(), is_loopback);
  const bool hidden = only_loopback && max_nodes > 1 && !names_loopback(plan.endpoint.host);
  owner.ours = true;
  owner.everywhere = !is_here || hidden;
  return owner;
}

// Throws if the loopback interface is down, or lacks the addresses: a node couldn't even reach
// itself.
void check_loopback(const std::vector<SocketAddress>& addresses) {
  need_loopback();
  const std::vector<InterfaceAddress> own = interface_addresses();
  const auto is_there = [&](const SocketAddress& wanted) {
    return std::ranges::any_of(own, [&](const InterfaceAddress& each) {
      return each.address.is_loopback() &&
             each.address.storage.ss_family == wanted.storage.ss_family;
    });
  };
  if (addresses.empty() || own.empty() || std::ranges::any_of(addresses, is_there)) return;
  const std::string address = addresses.front().host_text();
  throw Error(ErrorCode::kUnavailable,
              concat("the loopback interface has no address ", address,
                     ", over which this node's processes meet: ip address add ", address,
                     address.find(':') == address.npos ? "/8" : "/128", " dev lo"));
}

std::vector<UniqueFd> take(const RendezvousPlan& plan, bool everywhere,
                           const std::vector<SocketAddress>& addresses) {
  if (everywhere) return rendezvous::bind_everywhere(plan.endpoint.port);
  return rendezvous::bind_addresses(plan.endpoint, addresses);
}

// Connecting a datagram socket only looks up the route.
std::string default_route_source() {
  SocketAddress outside = resolve({.host = "192.0.2.1", .port = 9}).front();  // TEST-NET-1
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto* target = reinterpret_cast<const sockaddr*>(&outside.storage);
  if (!fd || ::connect(fd.get(), target, outside.length) != 0) return "";
  return local_address(fd.get()).host_text();
}

std::string first_interface() {
  for (const InterfaceAddress& own : interface_addresses()) {
    const bool is_ipv4 = own.address.storage.ss_family == AF_INET;
    if (own.is_up && is_ipv4 && !own.is_loopback) return own.address.host_text();
  }
  return "";
}

// Serves a job of one node at a port of its own. At the other job's rendezvous it would end with
// that job.
EndpointClaim claim_own(const RendezvousPlan& plan) {
  EndpointClaim claim;
  claim.listeners = rendezvous::bind_endpoint({.host = "127.0.0.1", .port = 0});
  claim.connect_to = {"127.0.0.1", local_address(claim.listeners.front().get()).port()};
  claim.note = concat("another job has its rendezvous at ", to_string(plan.endpoint),
                      ": this one has its own, at ", to_string(claim.connect_to));
  return claim;
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
  const auto is_loopback = [](const SocketAddress& address) { return address.is_loopback(); };
  if (std::ranges::all_of(owner.addresses, is_loopback)) check_loopback(owner.addresses);
  if (owner.on_loopback) claim.connect_to.host = "127.0.0.1";
  const auto bind = [&] { claim.listeners = take(plan, owner.everywhere, owner.addresses); };
  try {
    bind();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    // Finds out what has the port: a daemon, or another ddprun of this job on this machine.
    const bool is_ddprun =
        std::string_view(error.what()).find(concat(kInUseBy, "ddprun")) != std::string_view::npos;
    const auto mark = rendezvous::rendezvous_at(owner.addresses,
                                                is_ddprun ? kProbeTimeoutOfDdprun : kProbeTimeout);
    const bool is_of_another_job =
        mark && !mark->empty() && *mark != rendezvous::job_mark(plan.job_id);
    if (is_of_another_job && max_nodes == 1) return claim_own(plan);
    claim.contested = mark.has_value();
    if (claim.contested) {
      claim.everywhere = owner.everywhere;
      claim.addresses = owner.addresses;
      return claim;
    }
    bind();  // an earlier ddprun may have ended by now
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

std::optional<bool> is_own_address(const std::string& host) {
  SocketAddress address;
  auto* four = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    address.length = sizeof *four;
  } else if (::inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    address.length = sizeof *six;
  } else {
    return std::nullopt;
  }
  return is_local_address(address);
}

std::string primary_address() {
  std::string address = default_route_source();
  if (address.empty()) address = first_interface();
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace ddprun::launcher
