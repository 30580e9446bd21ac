// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "common/log.h"

namespace ddprun::report {
namespace {

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

template <std::size_t kUnits>
std::string scaled_text(double value, double step, const std::array<const char*, kUnits>& units) {
  std::size_t unit = 0;
  for (; std::abs(value) >= step && unit + 1 < units.size(); ++unit) value /= step;
  const bool is_whole = unit == 0 || std::abs(value) >= 100 || value == std::floor(value);
  return printed(is_whole ? "%.0f " : "%.1f ", value) + units[unit];
}

constexpr double kMinute = 60, kHour = 3600, kDay = 86'400;

}  // namespace

std::string count_text(std::int64_t count, const char* one) {
  return whole_text(count) + " " + one + (count == 1 ? "" : "s");
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size >= 1e12) return printed("%.3g", value);
  if (size >= 1000) return whole_text(std::llround(value));
  if (size >= 100 || value == std::floor(value)) return printed("%.0f", value);
  if (size >= 1) return printed("%.2f", value);
  if (size >= 0.001) return printed("%.4f", value);
  return printed("%.2e", value);
}

std::string bytes_text(double bytes) {
  return scaled_text<5>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string rate_text(double bytes_per_second) {
  return scaled_text<5>(bytes_per_second, 1000, {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"});
}

std::string percent_text(double share) {
  // Nearly all is not all.
  const bool is_fine = (share > 0 && share < 0.0995) || (share > 0.99 && share < 1);
  return printed(is_fine ? "%.1f %%" : "%.0f %%", 100 * std::min(share, share < 1 ? 0.999 : share));
}

std::string seconds_text(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 0.001) return printed("%.0f µs", seconds * 1e6);
  if (seconds < 1) return printed(seconds < 0.1 ? "%.1f ms" : "%.0f ms", seconds * 1000);
  if (seconds < 2 * kMinute) return printed("%.1f s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (seconds < 2 * kHour) return concat(whole / 60, " min ", whole % 60, " s");
  const std::int64_t minutes = std::llround(seconds / kMinute);
  if (seconds < 2 * kDay) return concat(minutes / 60, " h ", minutes % 60, " min");
  const std::int64_t hours = std::llround(seconds / kHour);
  return concat(hours / 24, " d ", hours % 24, " h");
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

std::string tick_text(double value, TextOf text) {
  std::string shown = text(value);
  const std::size_t end = std::min(shown.find_first_not_of("-0123456789.,"), shown.size());
  if (shown.find('.') >= end) return shown;
  std::size_t kept = shown.find_last_not_of('0', end - 1) + 1;
  if (shown[kept - 1] == '.') --kept;
  return shown.erase(kept, end - kept);
}

std::vector<double> nice_ticks(double low, double high, int wanted) {
  if (!(high > low)) {
    const double around = low == 0 ? 1 : std::abs(low) / 2;
    low = low == 0 ? 0 : low - around;
    high = high + around;
  }
  const double raw = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  // By their numbers: a sum of steps drifts.
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  std::vector<double> ticks;
  for (double number = first; number <= last; ++number) ticks.push_back(number * step);
  return ticks;
}

std::vector<double> nice_byte_ticks(double high, int wanted) {
  double unit = 1;
  while (high >= 1024 * unit) unit *= 1024;
  double step = unit;
  while (high / step > wanted) step *= 2;
  while (high / step < wanted / 2.0 && step > 1) step /= 2;
  std::vector<double> ticks{0, step};
  while (ticks.back() < high) ticks.push_back(ticks.back() + step);
  return ticks;
}

std::vector<double> time_ticks(double high, int wanted) {
  constexpr std::array kSteps{1.0,          2.0,          5.0,         10.0,        15.0,
                              30.0,         kMinute,      2 * kMinute, 5 * kMinute, 10 * kMinute,
                              15 * kMinute, 30 * kMinute, kHour,       2 * kHour,   3 * kHour,
                              6 * kHour,    12 * kHour,   kDay,        2 * kDay,    7 * kDay};
  double step = 0;
  for (const double each : kSteps) {
    step = each;
    if (high / each <= wanted) break;
  }
  if (high / step > wanted) step = std::ceil(high / wanted / kDay) * kDay;
  if (high < kSteps.front()) step = nice_ticks(0, std::max(high, 1e-3), wanted)[1];
  std::vector<double> ticks;
  for (int number = 0; number * step <= high * (1 + 1e-9); ++number) ticks.push_back(number * step);
  return ticks;
}

}  // namespace ddprun::report
