// SPDX-License-Identifier: Apache-2.0
#include "launcher/own_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "common/socket.h"

namespace ddprun::launcher {

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

}  // namespace ddprun::launcher
