// SPDX-License-Identifier: Apache-2.0
#include "launcher/paste_line.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

#include "common/endpoint.h"
#include "common/shell_words.h"
#include "common/socket.h"

namespace ddprun::launcher {
namespace {

// Connecting a datagram socket only asks the routing table.
std::string default_route_source() {
  SocketAddress outside = resolve({.host = "192.0.2.1", .port = 9}).front();  // TEST-NET-1
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto* target = reinterpret_cast<const sockaddr*>(&outside.storage);
  if (!fd || ::connect(fd.get(), target, outside.length) != 0) return "";
  return local_address(fd.get()).host_text();
}

std::string first_interface() {
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(interfaces, &::freeifaddrs);
  for (const ifaddrs* entry = interfaces; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) || !(entry->ifa_flags & IFF_UP)) continue;
    SocketAddress address;
    address.length = sizeof(sockaddr_in);
    std::memcpy(&address.storage, entry->ifa_addr, address.length);
    return address.host_text();
  }
  return "";
}

}  // namespace

std::string no_endpoint_message(const LaunchConfig& config, const std::string& address,
                                const std::vector<std::string>& looked_at) {
  const std::string endpoint = to_string(Endpoint{.host = address, .port = kDefaultRendezvousPort});
  std::string line = "ddprun --rdzv-endpoint=" + endpoint;
  for (const std::string& word : config.typed) line.append(1, ' ').append(shell_quoted(word));
  std::string text = "ddprun: --nnodes=" + std::to_string(config.max_nodes) +
                     " needs a place where the nodes meet, and none was given. "
                     "Paste this on each node:\n\n    " +
                     line +
                     "\n\n"
                     "(this host, " +
                     address +
                     ", then serves the rendezvous), or set "
                     "DDPRUN_RDZV_ENDPOINT, or write\nrdzv_endpoint = \"" +
                     endpoint +
                     "\" to ~/.config/ddprun/ddprun.toml or /etc/ddprun/ddprun.toml,\n"
                     "or start it with srun.\n";
  for (const std::string& reason : looked_at) text += "Not used: " + reason + ".\n";
  return text;
}

std::string primary_address() {
  std::string address = default_route_source();
  if (address.empty()) address = first_interface();
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace ddprun::launcher
