// SPDX-License-Identifier: Apache-2.0
// "a:29400,b": the places where one rendezvous may be found, as users type them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/endpoint.h"

namespace ddprun {

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
