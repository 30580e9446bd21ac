// SPDX-License-Identifier: Apache-2.0
#include "ctl/number_texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

#include "common/text.h"

namespace ddprun::ctl {
namespace {

constexpr char kNotKnown[] = "–";
constexpr double kMinute = 60, kHour = 3600, kDay = 86'400;

std::string scaled(double number, double step, const std::array<const char*, 5>& units) {
  if (!std::isfinite(number)) return kNotKnown;
  std::size_t unit = 0;
  for (; std::abs(number) >= step && unit + 1 < units.size(); ++unit) number /= step;
  const bool is_whole = unit == 0 || std::abs(number) >= 100;
  return printed(is_whole ? "%.0f " : "%.1f ", number) + units[unit];
}

// Counts in whole small units first, so that rounding can't give "2 min 60 s".
std::string two_parts(double seconds, double small_unit, std::int64_t small_in_large,
                      const char* large_name, const char* small_name) {
  const std::int64_t number = std::llround(seconds / small_unit);
  return concat(number / small_in_large, large_name, number % small_in_large, small_name);
}

}  // namespace

std::string printed(const char* format, double number) {
  std::array<char, 352> text{};  // room for any number
  std::snprintf(text.data(), text.size(), format, number);
  return text.data();
}

std::string whole_text(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string count_text(std::int64_t count, const char* one) {
  return concat(whole_text(count), ' ', one, count == 1 ? "" : "s");
}

std::string number_text(double number) {
  if (!std::isfinite(number)) return kNotKnown;
  const double size = std::abs(number);
  if (size >= 1e15) return printed("%.2e", number);
  if (size >= 999.5) return whole_text(std::llround(number));
  if (size >= 100 || number == std::floor(number)) return printed("%.0f", number);
  if (size >= 1) return printed("%.2f", number);
  if (size >= 0.001) return printed("%.4f", number);
  return printed("%.2e", number);
}

std::string bytes_text(double bytes) {
  return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string rate_text(double bytes_per_second) {
  return scaled(bytes_per_second, 1000, {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"});
}

std::string percent_text(double share) {
  if (!std::isfinite(share)) return kNotKnown;
  const bool is_fine = (share > 0 && share < 0.0995) || (share > 0.99 && share < 1);
  return printed(is_fine ? "%.1f %%" : "%.0f %%", 100 * (is_fine ? std::min(share, 0.999) : share));
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return kNotKnown;
  if (seconds == 0) return "0 s";
  if (seconds >= 1e15) return printed("%.2e s", seconds);
  if (seconds < 0.001) return printed("%.0f µs", seconds * 1e6);
  if (seconds < 1) return printed(seconds < 0.1 ? "%.1f ms" : "%.0f ms", seconds * 1000);
  if (seconds < 2 * kMinute) return printed("%.1f s", seconds);
  if (seconds < 2 * kHour) return two_parts(seconds, 1, 60, " min ", " s");
  if (seconds < 2 * kDay) return two_parts(seconds, kMinute, 60, " h ", " min");
  return two_parts(seconds, kHour, 24, " d ", " h");
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long>(std::max(seconds, 0.0) + 0.5);
  char text[64];
  if (whole >= 86'400) {
    std::snprintf(text, sizeof text, "%ld d %ld:%02ld", whole / 86'400, whole / 3600 % 24,
                  whole / 60 % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return text;
}

}  // namespace ddprun::ctl
