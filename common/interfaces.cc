// SPDX-License-Identifier: Apache-2.0
#include "common/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>

#include "common/error.h"
#include "common/unique_fd.h"

namespace ddprun {

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* each = all; each; each = each->ifa_next) {
    const int family = each->ifa_addr ? each->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress own{
        each->ifa_name, {}, (each->ifa_flags & IFF_UP) != 0, (each->ifa_flags & IFF_LOOPBACK) != 0};
    own.address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&own.address.storage, each->ifa_addr, own.address.length);
    found.push_back(std::move(own));
  }
  return found;
}

bool loopback_is_up() {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return true;
  return (request.ifr_flags & IFF_UP) != 0;
}

void need_loopback() {
  if (loopback_is_up()) return;
  throw Error(ErrorCode::kUnavailable,
              "the loopback interface is down, over which this node's processes meet: "
              "ip link set lo up");
}

std::string interface_of(const std::string& address) {
  for (const InterfaceAddress& own : interface_addresses()) {
    if (own.address.host_text() == address) return own.interface;
  }
  return "";
}

std::string virtual_kind(const std::string& name) {
  for (const char* start : {"docker", "virbr", "br-", "veth", "cni", "flannel", "cali", "vnet"}) {
    if (name.starts_with(start)) return start;
  }
  return name == "lo" ? name : "";
}

}  // namespace ddprun
