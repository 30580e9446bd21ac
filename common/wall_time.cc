// SPDX-License-Identifier: Apache-2.0
#include "common/wall_time.h"

namespace ddprun {

std::string utc_text(std::time_t at, const char* format) {
  std::tm parts{};
  char text[64];
  if (::gmtime_r(&at, &parts) == nullptr) return {};
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

std::string local_time_text(std::time_t at) {
  std::tm parts{};
  char text[16];
  ::localtime_r(&at, &parts);
  return {text, std::strftime(text, sizeof text, "%H:%M:%S", &parts)};
}

std::string utc_text(WallTime at) { return utc_text(WallTime::clock::to_time_t(at), "%FT%TZ"); }

std::string utc_text_ms(WallTime at) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(at);
  const auto rest = std::chrono::floor<std::chrono::milliseconds>(at - whole).count();
  std::string text = utc_text(whole);
  if (text.empty()) return text;
  std::string digits = std::to_string(1000 + rest);  // such as "1007"
  digits.front() = '.';
  text.insert(text.size() - 1, digits);
  return text;
}

}  // namespace ddprun
