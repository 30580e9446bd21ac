// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/parse_value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

namespace ddprun::launcher {

std::optional<int> parse_number(std::string_view text, int most) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool is_number = !text.empty() && error == std::errc() && stop == end;
  if (!is_number || number < 0 || number > most) return std::nullopt;
  return number;
}

std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  const bool is_number = !text.empty() && error == std::errc() && stop == end;
  if (!is_number || !(seconds >= 0 && seconds <= kMaxSeconds)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::optional<bool> parse_switch(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  for (const char* yes : {"1", "true", "yes", "on", "t", "y"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off", "f", "n"}) {
    if (lower == no) return false;
  }
  return std::nullopt;
}

}  // namespace ddprun::launcher
