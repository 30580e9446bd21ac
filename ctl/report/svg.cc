// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "common/log.h"
#include "ctl/report/clean_text.h"

namespace ddprun::report {
namespace {

// A tenth of a pixel is enough. "12", "12.5".
void append_number(std::string& text, double value) {
  char digits[32];
  constexpr double kFarOutside = 1e9;
  const double shown = std::isnan(value) ? 0 : std::clamp(value, -kFarOutside, kFarOutside);
  const int length = std::snprintf(digits, sizeof digits, "%.1f", shown);
  std::string_view number(digits, static_cast<std::size_t>(length));
  if (number.ends_with(".0")) number.remove_suffix(2);
  text += number == "-0" ? "0" : number;
}

void append_point(std::string& text, char letter, const Point& point) {
  text += letter;
  append_number(text, point.x);
  text += ' ';
  append_number(text, point.y);
}

bool is_rectangle(const std::vector<Point>& part) {
  return part.size() == 4 && part[0].y == part[1].y && part[1].x == part[2].x &&
         part[2].y == part[3].y && part[3].x == part[0].x;
}

// Of a heat map there are thousands, so they are short.
void append_rectangle(std::string& text, const std::vector<Point>& part) {
  append_point(text, 'M', part[0]);
  text += 'H';
  append_number(text, part[1].x);
  text += 'V';
  append_number(text, part[2].y);
  text += 'H';
  append_number(text, part[0].x);
  text += 'Z';
}

std::string path_of(const Shape& shape) {
  std::string text;
  for (const auto& part : shape.parts) {
    if (part.empty()) continue;
    if (shape.filled && is_rectangle(part)) {
      append_rectangle(text, part);
      continue;
    }
    for (std::size_t point = 0; point < part.size(); ++point) {
      append_point(text, point == 0 ? 'M' : 'L', part[point]);
    }
    if (shape.filled) text += 'Z';
  }
  return text;
}

void append_shape(std::string& svg, const Shape& shape) {
  const std::string path = path_of(shape);
  if (path.empty()) return;
  svg += concat("<path class=\"", shape.filled ? "f-" : "s-", shape.paint, '"');
  if (!shape.filled && shape.width != 1) svg += concat(" stroke-width=\"", shape.width, '"');
  if (!shape.filled && shape.dashed) svg += " stroke-dasharray=\"5 3\"";
  if (shape.filled && shape.opacity < 1) svg += concat(" fill-opacity=\"", shape.opacity, '"');
  svg += concat(" d=\"", path, "\"/>");
}

void append_label(std::string& svg, const Label& label) {
  constexpr std::array<const char*, 3> kAnchors = {"start", "middle", "end"};
  svg += "<text x=\"";
  append_number(svg, label.at.x);
  svg += "\" y=\"";
  append_number(svg, label.at.y);
  svg += concat("\" class=\"f-", label.paint, '"');
  if (label.size != Label().size) svg += concat(" font-size=\"", label.size, '"');
  if (label.anchor != Anchor::kStart) {
    svg += concat(" text-anchor=\"", kAnchors[static_cast<std::size_t>(label.anchor)], '"');
  }
  if (label.bold) svg += " font-weight=\"600\"";
  svg += '>' + html_text(label.text) + "</text>";
}

}  // namespace

std::string to_svg(const Drawing& drawing) {
  std::string svg = concat("<svg viewBox=\"0 0 ", drawing.width, ' ', drawing.height,
                           "\" font-size=\"", Label().size, "\" aria-hidden=\"true\">");
  for (const Shape& shape : drawing.shapes) append_shape(svg, shape);
  for (const Label& label : drawing.labels) append_label(svg, label);
  return svg + "</svg>";
}

}  // namespace ddprun::report
