// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/numbers.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

#include "common/log.h"

namespace ddprun::top {
namespace {

std::string printed(const char* format, int digits, double number) {
  std::array<char, 64> text{};
  const int size = std::snprintf(text.data(), text.size(), format, digits, number);
  return size < 0 || static_cast<std::size_t>(size) >= text.size() ? "?" : std::string(text.data());
}
std::string fixed(double number, int digits) { return printed("%.*f", digits, number); }

std::string scaled(double number, double step, const std::array<const char*, 5>& units) {
  std::size_t unit = 0;
  while (number >= step && unit + 1 < units.size()) {
    number /= step;
    ++unit;
  }
  return concat(fixed(number, unit == 0 || number >= 100 ? 0 : 1), ' ', units[unit]);
}

std::string two_parts(double seconds, double unit, const char* name, double small,
                      const char* small_name) {
  const double whole = std::floor(seconds / unit);
  return concat(fixed(whole, 0), name, fixed(std::floor((seconds - whole * unit) / small), 0),
                small_name);
}

}  // namespace

std::string number_text(double number) {
  if (!std::isfinite(number)) return "–";
  const double size = std::abs(number);
  if (size >= 1e15) return printed("%.*e", 2, number);
  if (size >= 1000) return whole_text(std::llround(number));
  if (size >= 100 || number == std::floor(number)) return fixed(number, 0);
  if (size >= 1) return fixed(number, 2);
  if (size >= 0.001) return fixed(number, 4);
  return printed("%.*e", 2, number);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "–";
  if (seconds < 0.001) return fixed(seconds * 1e6, 0) + " µs";
  if (seconds < 1) return fixed(seconds * 1000, seconds < 0.1 ? 1 : 0) + " ms";
  if (seconds < 120) return fixed(seconds, 1) + " s";
  if (seconds < 7200) return fixed(seconds / 60, 0) + " min";
  if (seconds < 172'800) return two_parts(seconds, 3600, " h ", 60, " min");
  return two_parts(seconds, 86'400, " d ", 3600, " h");
}

std::string bytes_text(double bytes) {
  return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}
std::string rate_text(double bytes_per_second) {
  return scaled(bytes_per_second, 1000, {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"});
}
std::string percent_text(double share) { return fixed(100 * share, 0) + " %"; }

}  // namespace ddprun::top
