// SPDX-License-Identifier: Apache-2.0
#include "common/signal_names.h"

#include <strings.h>

#include <charconv>
#include <csignal>
#include <cstring>

namespace ddprun {

std::string signal_name(int signal_number) {
  if (const char* name = sigabbrev_np(signal_number)) return std::string("SIG") + name;
  return "signal " + std::to_string(signal_number);
}

std::optional<int> parse_signal(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) {
    return number > 0 && number < NSIG ? std::optional(number) : std::nullopt;
  }
  std::string name(text);
  if (strncasecmp(name.c_str(), "SIG", 3) == 0) name.erase(0, 3);
  for (number = 1; number < NSIG; ++number) {
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
