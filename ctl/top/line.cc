// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/line.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "common/log.h"
#include "common/utf8.h"

namespace ddprun::top {
namespace {

constexpr std::size_t kMostBytes = 16'384;  // of one text: more than any screen shows
constexpr char kUnknown[] = "?";

struct Range {
  char32_t first, last;
};

// Of what terminals agree about. Two columns:
constexpr std::array<Range, 13> kWide = {{{0x1100, 0x115F},
                                          {0x2E80, 0x2E99},
                                          {0x2E9B, 0x2EF3},
                                          {0x2F00, 0x2FD5},
                                          {0x3001, 0x3029},
                                          {0x3030, 0x303E},
                                          {0x3041, 0x3096},
                                          {0x309B, 0x30FF},
                                          {0x3105, 0x312F},
                                          {0x3400, 0x4DBF},
                                          {0x4E00, 0x9FFF},
                                          {0xAC00, 0xD7A3},
                                          {0xFF01, 0xFF60}}};
// One: Latin, Greek, Cyrillic, punctuation, arrows, mathematics, boxes and blocks.
constexpr std::array<Range, 17> kNarrow = {{{0x20, 0x7E},
                                            {0xA1, 0xAC},
                                            {0xAE, 0x2FF},
                                            {0x370, 0x377},
                                            {0x37A, 0x37F},
                                            {0x384, 0x482},
                                            {0x48A, 0x52F},
                                            {0x1E00, 0x1EFF},
                                            {0x2010, 0x2015},
                                            {0x2018, 0x2027},
                                            {0x2030, 0x205E},
                                            {0x2070, 0x209C},
                                            {0x20A0, 0x20BF},
                                            {0x2100, 0x2311},
                                            {0x2500, 0x25FC},
                                            {0x2713, 0x2713},
                                            {0x2715, 0x2715}}};

template <std::size_t kSize>
bool is_in(const std::array<Range, kSize>& ranges, char32_t letter) {
  return std::any_of(ranges.begin(), ranges.end(), [letter](const Range& range) {
    return letter >= range.first && letter <= range.last;
  });
}

// 0: it isn't shown.
std::size_t width_of(char32_t letter) {
  if (is_in(kNarrow, letter)) return 1;
  return is_in(kWide, letter) ? 2 : 0;
}

// Of harmless text.
template <typename Each>
void for_each(std::string_view text, const Each& each) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0 || !each(utf8_code(text), text.substr(0, length))) return;
    text.remove_prefix(length);
  }
}

// In place of what ASCII hasn't; as wide.
std::string ascii(std::string_view text) {
  struct Pair {
    char32_t letter;
    char sign;
  };
  constexpr std::array<Pair, 26> kSigns = {
      {{U'–', '-'}, {U'·', '|'}, {U'…', '~'}, {U'µ', 'u'}, {U'▁', '.'}, {U'▂', ':'}, {U'▃', '-'},
       {U'▄', '='}, {U'▅', '+'}, {U'▆', '*'}, {U'▇', '#'}, {U'█', '@'}, {U'▲', '^'}, {U'▸', '>'},
       {U'✓', 'v'}, {U'■', 'x'}, {U'○', 'o'}, {U'✕', 'X'}, {U'↑', '^'}, {U'↓', 'v'}, {U'←', '<'},
       {U'→', '>'}, {U'▪', '='}, {U'─', '-'}, {U'▾', 'v'}, {U'×', 'x'}}};
  std::string all;
  for_each(text, [&](char32_t letter, std::string_view bytes) {
    const auto* known = std::find_if(kSigns.begin(), kSigns.end(),
                                     [&](const Pair& each) { return each.letter == letter; });
    if (letter < 0x80) {
      all += bytes;
    } else if (known != kSigns.end()) {
      all += known->sign;
    } else {
      all.append(width_of(letter), '?');
    }
    return true;
  });
  return all;
}

const char* escape_of(Style style, bool has_color) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGood:
      return has_color ? "\x1b[32m" : "";
    case Style::kInfo:
      return has_color ? "\x1b[36m" : "";
    case Style::kWarn:
      return has_color ? "\x1b[33;1m" : "\x1b[1m";
    case Style::kBad:
      return has_color ? "\x1b[31;1m" : "\x1b[1m";
    case Style::kChosen:
      return "\x1b[7m";
    case Style::kTitle:
      return "\x1b[1;4m";
  }
  return "";
}

}  // namespace

std::string harmless(std::string_view text) {
  const std::string line = one_line(text.substr(0, kMostBytes));
  std::string_view left = line;
  std::string all;
  while (!left.empty()) {
    const std::size_t length = utf8_length(left);
    const bool is_shown = length > 0 && width_of(utf8_code(left)) > 0;
    all += is_shown ? left.substr(0, length) : std::string_view(kUnknown);
    left.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return all;
}

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  for_each(text, [&](char32_t letter, std::string_view) {
    columns += width_of(letter);
    return true;
  });
  return columns;
}

std::string cut_text(std::string_view text, std::size_t columns) {
  if (columns_of(text) <= columns) return std::string(text);
  if (columns == 0) return "";
  std::size_t taken = 0, bytes = 0;
  for_each(text, [&](char32_t letter, std::string_view all) {
    const std::size_t width = width_of(letter);
    if (taken + width > columns - 1) return false;
    taken += width;
    bytes += all.size();
    return true;
  });
  std::string cut(text.substr(0, bytes));
  cut += "…";
  cut.append(columns - 1 - taken, ' ');  // half of a wide one
  return cut;
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::size_t most) {
  std::vector<std::string> lines;
  const std::string all = harmless(text);
  std::string_view left = all;
  columns = std::max<std::size_t>(columns, 2);
  while (!left.empty() && lines.size() < most) {
    if (lines.size() + 1 == most) {
      lines.push_back(cut_text(left, columns));
      break;
    }
    std::size_t width = 0, bytes = 0, last_blank = 0;
    for_each(left, [&](char32_t letter, std::string_view letters) {
      if (width + width_of(letter) > columns) return false;
      if (letter == U' ') last_blank = bytes;
      width += width_of(letter);
      bytes += letters.size();
      return true;
    });
    const bool is_rest = bytes == left.size();
    const bool is_between = !is_rest && left[bytes] == ' ';
    const std::size_t end = is_rest || is_between || last_blank == 0 ? bytes : last_blank;
    lines.emplace_back(left.substr(0, end));
    left.remove_prefix(end);
    while (!left.empty() && left.front() == ' ') left.remove_prefix(1);
  }
  return lines;
}

Line& Line::add(std::string_view text, Style style) {
  std::string safe = harmless(text);
  if (safe.empty()) return *this;
  columns_ += columns_of(safe);
  if (!spans_.empty() && spans_.back().style == style) {
    spans_.back().text += safe;
  } else {
    spans_.push_back({style, std::move(safe)});
  }
  return *this;
}

Line& Line::pad_to(std::size_t column) {
  if (column > columns_) add(std::string(column - columns_, ' '));
  return *this;
}

Line& Line::add_left(std::string_view text, std::size_t columns, Style style) {
  const std::string cut = cut_text(harmless(text), columns);
  add(cut, style);
  const std::size_t used = columns_of(cut);
  return used < columns ? add(std::string(columns - used, ' '), style) : *this;
}

Line& Line::add_right(std::string_view text, std::size_t columns, Style style) {
  const std::string cut = cut_text(harmless(text), columns);
  const std::size_t used = columns_of(cut);
  if (used < columns) add(std::string(columns - used, ' '), style);
  return add(cut, style);
}

Line& Line::add(const Line& other) {
  for (const Span& span : other.spans_) add(span.text, span.style);
  return *this;
}

void Line::cut(std::size_t columns) {
  if (columns_ <= columns) return;
  const std::vector<Span> spans = std::exchange(spans_, {});
  const std::size_t all = std::exchange(columns_, 0);
  std::size_t left = columns;
  for (const Span& span : spans) {
    const std::size_t width = columns_of(span.text);
    const bool is_last = width >= left && all > columns;
    // Of one that ends exactly there something behind it is missing.
    add(is_last ? cut_text(span.text + "  ", left) : span.text, span.style);
    if (is_last) return;
    left -= width;
  }
}

std::string Line::text() const {
  std::string all;
  for (const Span& span : spans_) all += span.text;
  return all;
}

std::string shown(const Line& line, const Look& look) {
  std::string all;
  for (const Line::Span& span : line.spans()) {
    const char* escape = look.has_styles ? escape_of(span.style, look.has_color) : "";
    all += escape;
    all += look.has_unicode ? span.text : ascii(span.text);
    if (*escape != '\0') all += "\x1b[0m";
  }
  if (!look.has_styles) all.erase(all.find_last_not_of(' ') + 1);
  return all;
}

}  // namespace ddprun::top
