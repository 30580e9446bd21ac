// SPDX-License-Identifier: Apache-2.0
#include "common/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun {
namespace {

// Parses "::1", "fe80::1%eth0".
std::optional<in6_addr> ipv6_of(const std::string& text) {
  in6_addr address{};
  const bool is_one = ::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &address) == 1;
  return is_one ? std::optional(address) : std::nullopt;
}

constexpr char kForm[] = "HOST or HOST:PORT (IPv6: [ADDR]:PORT)";

bool is_same(const Endpoint& one, const Endpoint& other) {
  return one.port == other.port && equals_ignoring_case(one.host, other.host);
}

}  // namespace

bool names_loopback(std::string_view host) {
  if (equals_ignoring_case(host, "localhost")) return true;
  const std::string text(host);
  in_addr address{};
  if (::inet_aton(text.c_str(), &address) != 0)
    return ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET;
  const auto bytes = ipv6_of(text);
  if (!bytes) return false;
  return IN6_IS_ADDR_LOOPBACK(&*bytes) ||
         (IN6_IS_ADDR_V4MAPPED(&*bytes) && bytes->s6_addr[12] == IN_LOOPBACKNET);
}

bool names_any_address(const std::string& host) {
  in_addr address{};
  if (::inet_aton(host.c_str(), &address) != 0) return address.s_addr == INADDR_ANY;
  const auto bytes = ipv6_of(host);
  return bytes && IN6_IS_ADDR_UNSPECIFIED(&*bytes);
}

std::string network_of(const std::string& address) {
  // Any program of this machine can use each of these 16 million addresses.
  if (address.starts_with("127.") && address != "127.0.0.1") return "127.0.0.0/8";
  auto bytes = ipv6_of(address);
  if (!bytes || IN6_IS_ADDR_V4MAPPED(&*bytes)) return address;
  std::memset(bytes->s6_addr + 8, 0, 8);
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET6, &*bytes, text, sizeof text);
  return std::string(text) + "/64";
}

bool is_host(std::string_view text) {
  const auto is_good = [](unsigned char byte) {
    return byte >= 0x80 || std::isalnum(byte) != 0 || std::strchr(".-_:%,", byte) != nullptr;
  };
  if (text.empty() || text.size() > kMaxHostBytes || text.find('\0') != std::string_view::npos ||
      !std::all_of(text.begin(), text.end(), is_good)) {
    return false;
  }
  return text.find(':') == std::string_view::npos || ipv6_of(std::string(text)).has_value();
}

std::optional<Endpoint> parse_endpoint(std::string_view text, std::uint16_t default_port) {
  if (text.empty()) return std::nullopt;
  Endpoint endpoint{.host = "", .port = default_port};
  std::string_view rest;
  if (text.front() == '[') {
    const auto close = text.find(']');
    if (close == std::string_view::npos || close == 1) return std::nullopt;
    endpoint.host = text.substr(1, close - 1);
    if (!ipv6_of(endpoint.host)) return std::nullopt;
    rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return std::nullopt;
  } else if (const auto colon = text.find(':'); colon == std::string_view::npos) {
    endpoint.host = text;
  } else if (text.find(':', colon + 1) != std::string_view::npos) {
    endpoint.host = text;  // several colons and no brackets: an IPv6 address
  } else {
    endpoint.host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (!endpoint.host.empty() && !is_host(endpoint.host)) return std::nullopt;
  if (!rest.empty()) {
    const auto port = parsed_number<std::uint16_t>(rest.substr(1));
    if (!port) return std::nullopt;
    endpoint.port = *port;
  }
  return endpoint;
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

EndpointList parse_endpoints(std::string_view text, std::uint16_t default_port) {
  const auto refused = [](std::string problem) { return EndpointList{{}, std::move(problem)}; };
  const auto num_parts = static_cast<std::size_t>(std::count(text.begin(), text.end(), ',')) + 1;
  if (num_parts > kMaxEndpoints) {
    return refused(
        concat("has ", num_parts, " endpoints, at most ", kMaxEndpoints, " can be given"));
  }
  EndpointList list;
  for (std::size_t i = 0; i < num_parts; ++i) {
    const std::string part(take_until(text, ","));
    const auto endpoint = parse_endpoint(part, default_port);
    if (const std::string wrong = port_problem(part); !wrong.empty()) return refused(wrong);
    if (!endpoint || endpoint->host.empty()) {
      return refused(num_parts == 1 ? concat("wants ", kForm)
                                    : concat("\"", part, "\" is not ", kForm));
    }
    if (num_parts > 1 && endpoint->port == 0) {
      return refused(concat(part, ": of several endpoints each needs a port that is known"));
    }
    for (const Endpoint& earlier : list.endpoints) {
      if (is_same(earlier, *endpoint)) {
        return refused(concat("has ", to_string(*endpoint), " twice"));
      }
    }
    list.endpoints.push_back(*endpoint);
  }
  return list;
}

std::string port_problem(std::string_view text) {
  const std::string_view port = text.substr(std::min(text.rfind(':'), text.size()));
  const bool is_number =
      port.size() > 1 && port.find_first_not_of("0123456789", 1) == std::string_view::npos;
  // An IPv6 address without brackets has no port.
  const std::string host(text.substr(0, text.size() - port.size()));
  const bool has_port = host.find(':') == std::string::npos || host.ends_with(']');
  if (!is_number || !has_port || parse_endpoint(text, 0) || !parse_endpoint(host + ":1", 0)) {
    return {};
  }
  return concat("port ", port.substr(1), " is above 65535");
}

EndpointList parse_servers(std::string_view text, std::uint16_t default_port) {
  EndpointList list = parse_endpoints(text, default_port);
  if (!list.endpoints.empty() && list.endpoints.front().port == 0) {
    return {{}, "nobody listens at port 0: give the port that the server has"};
  }
  return list;
}

std::string to_string(const std::vector<Endpoint>& endpoints) {
  return listed(endpoints, ",", [](const Endpoint& each) { return to_string(each); });
}

}  // namespace ddprun
