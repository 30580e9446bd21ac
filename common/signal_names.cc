// SPDX-License-Identifier: Apache-2.0
#include "common/signal_names.h"

#include <strings.h>

#include <csignal>
#include <cstring>

#include "common/parsed_number.h"

namespace ddprun {

std::string signal_name(int signal_number) {
  if (const char* name = sigabbrev_np(signal_number)) return std::string("SIG") + name;
  return "signal " + std::to_string(signal_number);
}

std::optional<int> parse_signal(std::string_view text) {
  if (const auto number = parsed_number<int>(text)) {
    return *number > 0 && *number < NSIG ? number : std::nullopt;
  }
  std::string name(text);
  if (strncasecmp(name.c_str(), "SIG", 3) == 0) name.erase(0, 3);
  for (int number = 1; number < NSIG; ++number) {
    const char* candidate = sigabbrev_np(number);
    if (candidate && strcasecmp(candidate, name.c_str()) == 0) return number;
  }
  return std::nullopt;
}

bool is_ignored(int signal_number) {
  struct sigaction now {};
  return ::sigaction(signal_number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace ddprun
