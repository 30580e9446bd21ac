// SPDX-License-Identifier: Apache-2.0
#include "common/wall_time.h"

#include <array>
#include <cstdint>
#include <utility>

#include "common/parsed_number.h"
#include "common/text.h"

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

std::optional<double> parse_decimal(std::string_view text) {
  const auto value = parsed_number<double>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

namespace {

using std::chrono::milliseconds;

constexpr double kMaxSeconds = 86'400'000;

std::optional<double> seconds_of_clock(std::string_view text) {
  double days = 0, seconds = 0;
  bool is_first = true;
  if (const auto dash = text.find('-'); dash != std::string_view::npos) {
    const auto parsed = parse_decimal(text.substr(0, dash));
    if (!parsed) return std::nullopt;
    days = *parsed;
    is_first = false;
    text.remove_prefix(dash + 1);
  }
  int parts = 0;
  for (const std::string_view part : parts_between(text, ':')) {
    const auto parsed = parse_decimal(part);
    if (!parsed || parts == 3) return std::nullopt;
    const double hours_or_60 = parts == 0 ? 24 : 60;  // after days the first part is hours
    if (!std::exchange(is_first, false) && *parsed >= hours_or_60) return std::nullopt;
    seconds = seconds * 60 + *parsed;
    ++parts;
  }
  if (days > 0 && parts != 3) return std::nullopt;
  return days * 86'400 + seconds;
}

}  // namespace

std::optional<milliseconds> parse_duration(std::string_view text) {
  std::optional<double> seconds;
  if (text.find_first_of(":-") != std::string_view::npos) {
    seconds = seconds_of_clock(text);
  } else if (!text.empty()) {
    constexpr std::string_view kUnits = "smhd";
    constexpr std::array kSeconds = {1.0, 60.0, 3'600.0, 86'400.0};
    const auto unit = kUnits.find(text.back());
    const double factor = unit == std::string_view::npos ? 1 : kSeconds[unit];
    if (unit != std::string_view::npos) text.remove_suffix(1);
    seconds = parse_decimal(text);
    if (seconds) *seconds *= factor;
  }
  if (!seconds || *seconds > kMaxSeconds) return std::nullopt;
  return milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

double seconds_in_tenths(std::chrono::nanoseconds time) {
  using Tenths = std::chrono::duration<std::int64_t, std::deci>;
  return static_cast<double>(std::chrono::round<Tenths>(time).count()) / 10;
}

double seconds_in_thousandths(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(std::chrono::round<milliseconds>(time)).count();
}

std::string milliseconds_text(std::chrono::microseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return concat(tenths / 10, ".", tenths % 10, " ms");
}

}  // namespace ddprun
