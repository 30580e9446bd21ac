// SPDX-License-Identifier: Apache-2.0
#include "common/environment.h"

#include <unistd.h>

#include <string_view>

namespace ddprun {

Environment current_environment() {
  Environment environment;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::optional<std::string> find_variable(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  if (found == environment.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::vector<std::string> to_strings(const Environment& environment) {
  std::vector<std::string> strings;
  strings.reserve(environment.size());
  for (const auto& [name, value] : environment) strings.push_back(name + "=" + value);
  return strings;
}

}  // namespace ddprun
