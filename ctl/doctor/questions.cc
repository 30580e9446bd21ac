// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/questions.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/endpoint_list.h"
#include "common/error.h"
#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun::doctor {
namespace {

std::string field(const Probe::Fields& fields, std::size_t at) {
  return at < fields.size() ? fields[at] : "";
}

std::uint64_t number_field(const Probe::Fields& fields, std::size_t at) {
  return std::strtoull(field(fields, at).c_str(), nullptr, 10);
}

}  // namespace

Probe::Fields look_at_directory(const std::string& path) {
  struct statvfs space;
  if (::statvfs(path.c_str(), &space) != 0) return {path, std::to_string(errno)};
  const auto bytes = [&](fsblkcnt_t blocks) { return std::to_string(blocks * space.f_frsize); };
  return {path, "0", bytes(space.f_blocks), bytes(space.f_bavail),
          (space.f_flag & ST_RDONLY) != 0 ? "1" : "0"};
}

DirectorySpace directory_of_fields(const Probe::Fields& fields) {
  return {field(fields, 0), static_cast<int>(number_field(fields, 1)), number_field(fields, 2),
          number_field(fields, 3), field(fields, 4) == "1"};
}

Probe::Fields look_up_name(const std::string& name) {
  Probe::Fields fields = {""};
  try {
    for (const SocketAddress& address : resolve({.host = name, .port = 1})) {
      fields.push_back(address.host_text());
    }
  } catch (const Error& error) {
    fields = {error.what()};
  }
  return fields;
}

NameAnswer name_of_fields(const Probe::Fields& fields) {
  NameAnswer answer;
  answer.failure = field(fields, 0);
  if (fields.size() > 1) answer.addresses.assign(fields.begin() + 1, fields.end());
  return answer;
}

Probe::Fields look_up_route(const std::string& endpoint) {
  try {
    const EndpointList list = parse_servers(endpoint, kDefaultRendezvousPort);
    if (!list.problem.empty()) return {list.problem};
    const SocketAddress peer = resolve(list.endpoints.front()).front();
    // Connecting a datagram socket only asks the routing table.
    const UniqueFd fd(::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto* target = reinterpret_cast<const sockaddr*>(&peer.storage);
    if (!fd || ::connect(fd.get(), target, peer.length) != 0) {
      return {"no route to " + peer.host_text() + ": " + errno_text(errno)};
    }
    const std::string address = local_address(fd.get()).host_text();
    return {"", interface_of(address), address};
  } catch (const Error& error) {
    return {error.what()};
  }
}

RouteAnswer route_of_fields(const Probe::Fields& fields) {
  return {field(fields, 0), field(fields, 1), field(fields, 2)};
}

std::string interface_of(const std::string& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* each = all; each; each = each->ifa_next) {
    const int family = each->ifa_addr ? each->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress own;
    own.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&own.storage, each->ifa_addr, own.length);
    if (own.host_text() == address) return each->ifa_name;
  }
  return "";
}

Probe::Fields endpoint_fields(const EndpointAnswer& answer) {
  return {answer.failure, answer.version,
          answer.skew_seconds ? std::to_string(*answer.skew_seconds) : ""};
}

EndpointAnswer endpoint_of_fields(const Probe::Fields& fields) {
  EndpointAnswer answer{field(fields, 0), field(fields, 1), {}};
  if (const std::string skew = field(fields, 2); !skew.empty()) {
    answer.skew_seconds = std::strtod(skew.c_str(), nullptr);
  }
  return answer;
}

}  // namespace ddprun::doctor
