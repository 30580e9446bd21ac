// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/styled_text.h"

#include <algorithm>
#include <clocale>
#include <cwchar>

#include "common/text.h"
#include "common/utf8.h"

namespace ddprun::top {
namespace {

// 0: the character isn't shown.
std::size_t width_of(char32_t letter) {
  const int width = letter > 0xFFFF ? 0 : ::wcwidth(static_cast<wchar_t>(letter));
  return width < 0 ? 0 : static_cast<std::size_t>(width);
}

// Returns the bytes of the first character; at least 1, unless the text is empty.
std::size_t length_of(std::string_view text) { return std::max<std::size_t>(utf8_length(text), 1); }

// The part of a line's beginning that fits.
struct Fitting {
  std::size_t bytes = 0, columns = 0;
};
Fitting fitting(std::string_view line, std::size_t columns) {
  Fitting all;
  while (all.bytes < line.size()) {
    const std::string_view rest = line.substr(all.bytes);
    const std::size_t width = width_of(utf8_code(rest));
    if (all.columns + width > columns) break;
    all.columns += width;
    all.bytes += length_of(rest);
  }
  return all;
}

}  // namespace

void append(Lines& lines, std::span<const std::string> more) {
  lines.insert(lines.end(), more.begin(), more.end());
}

void use_wide_characters() {
  for (const char* name : {"C.UTF-8", "C.utf8", "en_US.UTF-8", ""}) {
    if (std::setlocale(LC_CTYPE, name) != nullptr && MB_CUR_MAX > 1) return;
  }
}

std::string harmless(std::string_view text) {
  constexpr std::size_t kMostBytes = 16'384;  // more than any screen shows
  const std::string line = one_line(text.substr(0, kMostBytes));
  std::string all;
  for (std::string_view rest = line; !rest.empty(); rest.remove_prefix(length_of(rest))) {
    const std::size_t length = utf8_length(rest);
    all += length > 0 && width_of(utf8_code(rest)) > 0 ? rest.substr(0, length) : "?";
  }
  return all;
}

std::size_t columns_of(std::string_view line) { return fitting(line, line.npos).columns; }

std::string cut(std::string_view line, std::size_t columns) {
  if (columns_of(line) <= columns) return std::string(line);
  if (columns == 0) return "";
  const Fitting kept = fitting(line, columns - 1);
  return concat(line.substr(0, kept.bytes), "…", std::string(columns - 1 - kept.columns, ' '));
}

std::string left(std::string_view text, std::size_t columns) {
  const std::string kept = cut(text, columns);
  return kept + std::string(columns - columns_of(kept), ' ');
}

std::string right(std::string_view text, std::size_t columns) {
  const std::string kept = cut(text, columns);
  return std::string(columns - columns_of(kept), ' ') + kept;
}

void add_wrapped(Lines& lines, std::string_view text, std::size_t columns, char style,
                 std::size_t most) {
  columns = std::max<std::size_t>(columns, 2);
  for (std::size_t num = 1; !text.empty() && num <= most; ++num) {
    std::size_t end = num == most ? text.size() : fitting(text, columns).bytes;
    if (end < text.size() && text[end] != ' ') {
      const std::size_t blank = text.substr(0, end).rfind(' ');
      if (blank != std::string_view::npos && blank > 0) end = blank;
    }
    lines.push_back(style + cut(text.substr(0, end), columns));
    text.remove_prefix(std::min(text.find_first_not_of(' ', end), text.size()));
  }
}

std::string in_ascii(std::string_view line) {
  constexpr std::u32string_view kSigns = U"–·…µ▁▂▃▄▅▆▇█▲▸✓■○✕↑↓←→▪─▾×";
  constexpr std::string_view kAscii = "-|~u.:-=+*#@^>vxoX^v<>=-vx";
  static_assert(kSigns.size() == kAscii.size());
  std::string all;
  for (; !line.empty(); line.remove_prefix(length_of(line))) {
    const char32_t letter = utf8_code(line);
    if (const std::size_t known = kSigns.find(letter); known != kSigns.npos) {
      all += kAscii[known];
    } else {
      all.append(letter < 0x80 ? 1 : width_of(letter), letter < 0x80 ? line.front() : '?');
    }
  }
  return all;
}

std::string without_styles(std::string line) {
  std::erase_if(line, [](char byte) { return byte > 0 && byte <= kTitle; });
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace ddprun::top
