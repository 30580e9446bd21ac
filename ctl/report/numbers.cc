// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace ddprun::report {
namespace {

constexpr double kMinute = 60, kHour = 3600, kDay = 86'400;
constexpr double kMostTickNumber = 1e12;
constexpr double kMostTickBytes = 1e30;

}  // namespace

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
  // Beyond what numbers can tell apart, or no number at all.
  if (!(std::abs(first) < kMostTickNumber && std::abs(last) < kMostTickNumber)) return {low, high};
  for (double number = first; number <= last; ++number) ticks.push_back(number * step);
  return ticks;
}

std::vector<double> nice_byte_ticks(double high, int wanted) {
  high = std::min(high, kMostTickBytes);
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
