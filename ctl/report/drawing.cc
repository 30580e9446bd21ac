// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/drawing.h"

#include <algorithm>
#include <array>

#include "common/utf8.h"

namespace ddprun::report {
namespace {

// By the size, as of DejaVu Sans, which is a wide one: digits and most letters; others.
constexpr double kLetterWidth = 0.64, kNarrowWidth = 0.4, kWideWidth = 0.96;

constexpr std::array<Paint, kNumSeriesPaints> kSeries = {
    "series-0", "series-1", "series-2", "series-3", "series-4", "series-5", "series-6", "series-7"};
constexpr std::array<Paint, kNumHeatPaints> kHeat = {
    "heat-0", "heat-1", "heat-2", "heat-3", "heat-4", "heat-5", "heat-6", "heat-7", "heat-8"};

// Of the letter that begins with this byte; 0 of a byte further in.
double width_of(char byte) {
  if ((byte & 0xC0) == 0x80) return 0;
  constexpr std::string_view kNarrow = " iljtfrI.,:;'|()!-", kWide = "mwMW%@";
  if (kNarrow.find(byte) != std::string_view::npos) return kNarrowWidth;
  return kWide.find(byte) != std::string_view::npos ? kWideWidth : kLetterWidth;
}

}  // namespace

Paint series_paint(std::size_t number) { return kSeries[number % kSeries.size()]; }
Paint heat_paint(std::size_t level) { return kHeat[std::min(level, kHeat.size() - 1)]; }

std::vector<Point> rectangle(double x, double y, double width, double height) {
  return {{x, y}, {x + width, y}, {x + width, y + height}, {x, y + height}};
}

double text_width(std::string_view text, double size) {
  double width = 0;
  for (const char byte : text) width += width_of(byte);
  return width * size;
}

std::string fitted(const std::string& text, double size, double width) {
  if (text_width(text, size) <= width) return text;
  std::string cut;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(rest), 1);
    if (text_width(cut, size) + 2 * kLetterWidth * size > width) break;
    cut += rest.substr(0, length);
    rest.remove_prefix(length);
  }
  return cut + "…";
}

}  // namespace ddprun::report
