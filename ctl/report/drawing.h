// SPDX-License-Identifier: Apache-2.0
// What a chart is made of, before it is SVG or pixels: areas, lines and words, in colours that have
// a name on the page. Plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::report {

// By the name of its variable in the page's style: "blue-fill", "series-3", "heat-8".
using Paint = std::string_view;

inline constexpr Paint kGround = "ground", kPanel = "panel", kRule = "line", kText = "text",
                       kQuiet = "quiet", kBlue = "blue", kGreen = "green", kAmber = "amber",
                       kRed = "red", kBlueFill = "blue-fill", kGreenFill = "green-fill",
                       kAmberFill = "amber-fill", kRedFill = "red-fill", kGreyFill = "grey-fill",
                       kFaint = "faint";

// Those of lines that are told apart, and of a scale from little to much.
inline constexpr std::size_t kNumSeriesPaints = 8, kNumHeatPaints = 9;
Paint series_paint(std::size_t number);
Paint heat_paint(std::size_t level);

struct Point {
  double x = 0, y = 0;  // from the upper left corner
};

struct Shape {
  Paint paint;
  bool filled = true;   // else a line
  double width = 1;     // of a line
  bool dashed = false;  // likewise
  double opacity = 1;   // of an area
  std::vector<std::vector<Point>> parts = {};
};

enum class Anchor { kStart, kMiddle, kEnd };

struct Label {
  Point at;  // of its base line
  std::string text;
  Anchor anchor = Anchor::kStart;
  Paint paint = kQuiet;
  double size = 11;
  bool bold = false;
};

struct Drawing {
  double width = 0, height = 0;
  std::vector<Shape> shapes = {};  // the later ones over the earlier
  std::vector<Label> labels = {};  // over all of them
};

std::vector<Point> rectangle(double x, double y, double width, double height);

// How wide it is about, rather too much than too little: nobody has measured the reader's font.
double text_width(std::string_view text, double size);
// Cut with "…" where it is wider.
std::string fitted(const std::string& text, double size, double width);

}  // namespace ddprun::report
