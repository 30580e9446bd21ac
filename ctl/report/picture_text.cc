// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/picture_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "common/check.h"
#include "common/log.h"
#include "ctl/report/page/report_style.h"

namespace ddprun::report {
namespace {

constexpr double kMargin = 20, kTitleSize = 15, kTextSize = 12, kLineHeight = 18, kSign = 16;

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

// At blanks, into lines that are as wide at most.
std::vector<std::string> wrapped(const std::string& text, double width) {
  std::vector<std::string> lines{""};
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string word(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::string& line = lines.back();
    if (!line.empty() && text_width(line + " " + word, kTextSize) > width) {
      lines.push_back(word);
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return lines;
}

void draw_sign(const LegendEntry& entry, double x, double y, Drawing& picture) {
  if (entry.sign == LegendEntry::Sign::kArea) {
    picture.shapes.push_back({.paint = entry.paint, .parts = {rectangle(x, y - 9, 11, 11)}});
    return;
  }
  picture.shapes.push_back({.paint = entry.paint,
                            .filled = false,
                            .width = 2,
                            .dashed = entry.sign == LegendEntry::Sign::kDashes,
                            .parts = {{{x, y - 4}, {x + kSign - 3, y - 4}}}});
}

// Returns where its last line ends.
double draw_legend(const std::vector<LegendEntry>& legend, double y, double width,
                   Drawing& picture) {
  double x = kMargin;
  for (const LegendEntry& entry : legend) {
    const double wide = kSign + 4 + text_width(entry.text, kTextSize);
    if (x > kMargin && x + wide > kMargin + width) x = kMargin, y += kLineHeight;
    draw_sign(entry, x, y, picture);
    picture.labels.push_back(
        {.at = {x + kSign + 2, y}, .text = entry.text, .paint = kText, .size = kTextSize});
    x += wide + 16;
  }
  return legend.empty() ? y - kLineHeight : y;
}

std::string parts_text(const Shape& shape) {
  std::string text;
  for (const auto& part : shape.parts) {
    text += ' ';
    for (std::size_t point = 0; point < part.size(); ++point) {
      if (point > 0) text += ';';
      text += short_number(part[point].x) + ',' + short_number(part[point].y);
    }
  }
  return text;
}

}  // namespace

std::string light_colour(Paint paint) {
  // The first one is light's; behind it comes dark's.
  const std::string name = concat("--", paint, ": ");
  const std::size_t at = kReportStyle.find(name);
  DDPRUN_CHECK(at != std::string_view::npos);
  return std::string(kReportStyle.substr(at + name.size(), 7));
}

Drawing picture_of(const Chart& chart) {
  const double width = chart.drawing.width;
  Drawing picture{.width = width + 2 * kMargin, .height = 0};
  picture.shapes.push_back({.paint = kPanel});  // its height comes last
  double y = kMargin + kTitleSize;
  picture.labels.push_back({.at = {kMargin, y},
                            .text = fitted(chart.title, kTitleSize, width),
                            .paint = kText,
                            .size = kTitleSize,
                            .bold = true});
  for (const std::string& line : wrapped(chart.summary, width)) {
    y += kLineHeight;
    picture.labels.push_back(
        {.at = {kMargin, y}, .text = line, .paint = kQuiet, .size = kTextSize});
  }
  y = draw_legend(chart.legend, y + kLineHeight + 4, width, picture) + 12;
  const auto moved = [&](Point point) { return Point{point.x + kMargin, point.y + y}; };
  for (Shape shape : chart.drawing.shapes) {
    for (auto& part : shape.parts) {
      for (Point& point : part) point = moved(point);
    }
    picture.shapes.push_back(std::move(shape));
  }
  for (Label label : chart.drawing.labels) {
    label.at = moved(label.at);
    picture.labels.push_back(std::move(label));
  }
  picture.height = y + chart.drawing.height + kMargin;
  picture.shapes.front().parts.push_back(rectangle(0, 0, picture.width, picture.height));
  return picture;
}

std::string picture_text(const std::string& name, const Drawing& drawing) {
  constexpr std::array<const char*, 3> kAnchors = {"start", "middle", "end"};
  std::string text = concat("picture ", name, ' ', short_number(drawing.width), ' ',
                            short_number(drawing.height), '\n');
  for (const Shape& shape : drawing.shapes) {
    const std::string parts = parts_text(shape);
    if (parts.empty()) continue;
    text += shape.filled
                ? concat("area ", light_colour(shape.paint), ' ', short_number(shape.opacity))
                : concat("line ", light_colour(shape.paint), ' ', short_number(shape.width),
                         shape.dashed ? " dashed" : " solid");
    text += parts + '\n';
  }
  for (const Label& label : drawing.labels) {
    text +=
        concat("text ", light_colour(label.paint), ' ', short_number(label.size),
               label.bold ? " bold " : " normal ", kAnchors[static_cast<std::size_t>(label.anchor)],
               ' ', short_number(label.at.x), ' ', short_number(label.at.y), ' ', label.text, '\n');
  }
  return text;
}

}  // namespace ddprun::report
