// SPDX-License-Identifier: Apache-2.0
#include "common/endpoint_list.h"

#include <algorithm>
#include <utility>

#include "common/ascii.h"
#include "common/text.h"

namespace ddprun {
namespace {

constexpr char kForm[] = "HOST or HOST:PORT (IPv6: [ADDR]:PORT)";

bool is_same(const Endpoint& one, const Endpoint& other) {
  return one.port == other.port && equals_ignoring_case(one.host, other.host);
}

}  // namespace

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
