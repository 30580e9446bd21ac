// SPDX-License-Identifier: Apache-2.0
#include "common/environment.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "common/env_names.h"
#include "common/text.h"

namespace ddprun {
namespace {

void add(std::string_view text, Environment& environment) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return;
  environment.emplace(text.substr(0, equals), text.substr(equals + 1));
}

// Variables that the other host, its login and its terminal have themselves.
constexpr char kOwnNames[] =
    "_ COLUMNS DISPLAY GPG_AGENT_INFO GPG_TTY HISTFILE HOME HOST HOSTNAME HOSTTYPE KRB5CCNAME "
    "LINES LOGNAME LS_COLORS MACHTYPE MAIL OLDPWD OSTYPE PS1 PWD SHELL SHLVL SSH_TTY STY TEMP "
    "TERMCAP TMP TMPDIR USER WINDOWID TORCHELASTIC_ERROR_FILE";
constexpr std::string_view kOwnPrefixes[] = {
    "BASH_", "DBUS_", "DESKTOP_", "DDPRUN_",  "PET_",       "SESSION_", "SSH_",
    "TERM_", "TMUX",  "VTE_",     "WAYLAND_", "XAUTHORITY", "XDG_"};
// Variables that are forwarded in spite of their prefix: workers read them, and they don't describe
// the machine.
constexpr std::string_view kForwarded[] = {"DDPRUN_CUDART_LIBRARY", "DDPRUN_NCCL_LIBRARY",
                                           "DDPRUN_NVML_LIBRARY"};

bool is_forwarded(std::string_view name) {
  if (std::ranges::find(kForwarded, name) != std::end(kForwarded)) return true;
  static const std::vector<std::string> own_names = filled_parts(kOwnNames, " ");
  return std::ranges::find(own_names, name) == own_names.end() &&
         std::ranges::none_of(kOwnPrefixes, [&](auto prefix) { return name.starts_with(prefix); });
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

std::optional<std::string> user_directory(const Environment& environment,
                                          const std::string& variable,
                                          const std::string& below_home) {
  if (const auto told = find_variable(environment, variable)) return told;
  const auto home = find_variable(environment, env::kHome);
  if (!home) return std::nullopt;
  return (std::filesystem::path(*home) / below_home).string();
}

std::vector<std::string> to_strings(const Environment& environment) {
  std::vector<std::string> strings;
  strings.reserve(environment.size());
  for (const auto& [name, value] : environment) strings.push_back(name + "=" + value);
  return strings;
}

std::vector<std::string> forwarded_environment(const Environment& environment,
                                               const std::vector<std::string>& wishes) {
  Environment forwarded;
  for (const auto& [name, value] : environment) {
    if (is_forwarded(name)) forwarded[name] = value;
  }
  for (const std::string& wish : wishes) {
    const std::size_t equals = wish.find('=');
    const std::string name = wish.substr(0, equals);
    if (equals != std::string::npos) {
      forwarded[name] = wish.substr(equals + 1);
    } else if (name.starts_with('-')) {
      forwarded.erase(name.substr(1));
    } else if (const auto found = environment.find(name); found != environment.end()) {
      forwarded[name] = found->second;
    }
  }
  return to_strings(forwarded);
}

std::string check_env_wish(const std::string& wish) {
  std::string name = wish.substr(0, wish.find('='));
  if (name.size() == wish.size() && name.starts_with('-')) name.erase(0, 1);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char letter) {
    return static_cast<unsigned char>(letter) > ' ' && letter != 0x7f;
  });
  return is_name ? "" : "wants NAME, NAME=VALUE or -NAME";
}

}  // namespace ddprun
