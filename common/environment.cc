// SPDX-License-Identifier: Apache-2.0
#include "common/environment.h"

#include <unistd.h>

#include <string_view>

namespace ddprun {
namespace {

void add(std::string_view text, Environment& environment) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return;
  environment.emplace(text.substr(0, equals), text.substr(equals + 1));
}

}  // namespace

Environment current_environment() {
  Environment environment;
  for (char** entry = ::environ; entry && *entry; ++entry) add(*entry, environment);
  return environment;
}

Environment from_strings(const std::vector<std::string>& strings) {
  Environment environment;
  for (const std::string& text : strings) add(text, environment);
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
