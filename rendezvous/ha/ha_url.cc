// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/ha_url.h"

#include <algorithm>

#include "common/endpoint.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::ha {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr std::uint16_t kEtcdPort = 2379;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw_invalid("\"", text, "\" is not etcd://HOST:PORT,…/PREFIX: ", why);
}

bool is_plain(std::string_view prefix) {
  return std::ranges::all_of(prefix, [](unsigned char letter) {
    return letter > ' ' && letter < 0x7f && letter != ',' && letter != '?' && letter != '#';
  });
}

}  // namespace

HaUrl parse_ha_url(std::string_view text) {
  if (!text.starts_with(kScheme)) refuse(text, "it does not begin with etcd://");
  const std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  HaUrl url;
  url.prefix = rest.substr(slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  if (url.prefix.empty()) url.prefix = "/ddprun";
  if (!is_plain(url.prefix)) refuse(text, "the prefix has letters that are none of a path");
  for (const std::string_view host : parts_between(rest.substr(0, slash), ',')) {
    const auto endpoint = parse_endpoint(host, kEtcdPort);
    if (!endpoint || endpoint->host.empty() || endpoint->port == 0) {
      const std::string wrong = port_problem(host);
      refuse(text, wrong.empty() ? concat("\"", host, "\" is no HOST or HOST:PORT") : wrong);
    }
    if (std::ranges::find(url.endpoints, *endpoint) != url.endpoints.end()) {
      refuse(text, concat(host, " is named twice"));
    }
    url.endpoints.push_back(*endpoint);
  }
  return url;
}

}  // namespace ddprun::ha
