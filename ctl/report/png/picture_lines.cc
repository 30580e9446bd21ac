// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/png/picture_lines.h"

#include <charconv>
#include <vector>

#include "common/error.h"

namespace ddprun::report {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::kInvalidArgument, std::string("no line of a picture: ") + what);
}

std::string_view next_word(std::string_view& rest, char separator = ' ') {
  const std::size_t end = rest.find(separator);
  const std::string_view word = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return word;
}

double number_in(std::string_view word) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  constexpr double kMost = 1e6;
  const bool is_whole = error == std::errc() && end == word.data() + word.size();
  if (!is_whole || !(number >= -kMost && number <= kMost)) refuse("a number");
  return number;
}

Colour colour_in(std::string_view word) {
  unsigned value = 0;
  if (word.size() != 7 || word[0] != '#') refuse("a colour");
  const auto [end, error] = std::from_chars(word.data() + 1, word.data() + 7, value, 16);
  if (error != std::errc() || end != word.data() + 7) refuse("a colour");
  constexpr double kFull = 255;
  return {(value >> 16) / kFull, (value >> 8 & 255) / kFull, (value & 255) / kFull, 1};
}

std::vector<std::vector<Point>> parts_in(std::string_view rest) {
  std::vector<std::vector<Point>> parts;
  while (!rest.empty()) {
    std::string_view points = next_word(rest);
    std::vector<Point> part;
    while (!points.empty()) {
      std::string_view point = next_word(points, ';');
      const double x = number_in(next_word(point, ','));
      part.push_back({x, number_in(point)});
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

void PictureLines::line(std::string_view line) {
  const std::string_view what = next_word(line);
  if (what == "picture") return begin(line);
  if (!canvas_) refuse("it comes before the first picture");
  if (what == "area") return area(line);
  if (what == "line") return stroke(line);
  if (what == "text") return text(line);
  refuse("its first word");
}

void PictureLines::end() {
  if (canvas_) canvas_->write(folder_ + "/" + name_ + ".png");
  canvas_.reset();
}

void PictureLines::begin(std::string_view rest) {
  end();
  name_ = next_word(rest);
  const bool is_name =
      name_.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  if (name_.empty() || !is_name) refuse("a picture's name");
  const double width = number_in(next_word(rest));
  canvas_.emplace(width, number_in(rest));
}

void PictureLines::area(std::string_view rest) {
  Colour colour = colour_in(next_word(rest));
  colour.opacity = number_in(next_word(rest));
  canvas_->area(colour, parts_in(rest));
}

void PictureLines::stroke(std::string_view rest) {
  const Colour colour = colour_in(next_word(rest));
  const double width = number_in(next_word(rest));
  const bool dashed = next_word(rest) == "dashed";
  canvas_->line(colour, width, dashed, parts_in(rest));
}

void PictureLines::text(std::string_view rest) {
  const Colour colour = colour_in(next_word(rest));
  const double size = number_in(next_word(rest));
  const bool bold = next_word(rest) == "bold";
  const std::string_view anchor = next_word(rest);
  const double x = number_in(next_word(rest));
  const double y = number_in(next_word(rest));
  canvas_->text(colour, size, bold,
                anchor == "middle" ? Anchor::kMiddle
                : anchor == "end"  ? Anchor::kEnd
                                   : Anchor::kStart,
                {x, y}, std::string(rest));
}

}  // namespace ddprun::report
