// SPDX-License-Identifier: Apache-2.0
// "host:port" as users type it. Pure: no look-up here (see socket.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

inline constexpr std::uint16_t kDefaultRendezvousPort = 29400;
inline constexpr std::uint16_t kDefaultMasterPort = 29500;

struct Endpoint {
  std::string host;        // A name, an IPv4 address, or an IPv6 address without brackets.
  std::uint16_t port = 0;  // 0 = any free port, where that makes sense.

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

inline constexpr std::size_t kMaxHostBytes = 255;

// Whether `text` can be a host: a name, or an IPv4 or IPv6 address (without brackets). A name has
// ASCII letters and digits, ".", "-", "_", "%", "," and characters beyond ASCII. So it is harmless
// in a shell's command (ssh's ProxyCommand has it as %h).
bool is_host(std::string_view text);

// Parses "host", "host:port", "[v6]", "[v6]:port", ":port" (host empty). A bare IPv6 address
// without a port ("::1") is a host. nullopt: it is empty, the port is no number in 0…65535, or it
// is no host.
std::optional<Endpoint> parse_endpoint(std::string_view text, std::uint16_t default_port);

// Whether the text itself names loopback, unlike a name that merely resolves to it: "localhost" in
// any case, or an address in any of its notations ("127.1", "2130706433", "::ffff:127.0.0.1").
bool names_loopback(std::string_view host);

// Whether the text is an address that stands for any: "0.0.0.0", "0", "::". Whoever connects to it
// reaches itself.
bool names_any_address(const std::string& host);

// Returns the network that one owner of a numeric address has. IPv6: 64 bits, "2001:db8::/64",
// since the owner of one address has all of them. IPv4: the address itself, but "127.0.0.0/8" for
// all of loopback beyond 127.0.0.1.
std::string network_of(const std::string& address);

// Returns "host:port" or "[v6]:port".
std::string to_string(const Endpoint& endpoint);

// ---- "a:29400,b": the places where one rendezvous may be found ----

inline constexpr std::size_t kMaxEndpoints = 8;

struct EndpointList {
  std::vector<Endpoint> endpoints;  // in the order given; empty where there is a problem
  std::string problem;              // completes "--rdzv-endpoint=TEXT: "; empty: there is none
};

// Parses HOST[:PORT], or up to kMaxEndpoints of them, separated by commas, no two the same. If
// there are several, none may have port 0.
EndpointList parse_endpoints(std::string_view text, std::uint16_t default_port);

// Does the same for servers that run already: even a single one may not have port 0.
EndpointList parse_servers(std::string_view text, std::uint16_t default_port);

// Returns "a:29400,b:29400".
std::string to_string(const std::vector<Endpoint>& endpoints);

// Returns "port 99999 is above 65535" if that is wrong in `text`, as HOST:PORT; else "".
std::string port_problem(std::string_view text);

}  // namespace ddprun
