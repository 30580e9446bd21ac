// SPDX-License-Identifier: Apache-2.0
#include "common/utf8.h"

#include <algorithm>

namespace ddprun {

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (first == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (first == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return length;
}

char32_t utf8_code(std::string_view text) {
  const std::size_t length = utf8_length(text);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (length == 1) return byte(0);
  char32_t code = byte(0) & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3FU);
  return code;
}

bool is_hidden(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  constexpr Range kHidden[] = {{0x80, 0x9F},     {0x61C, 0x61C},   {0x200B, 0x200F},
                               {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF},
                               {0xFFFE, 0xFFFF}};
  return std::ranges::any_of(
      kHidden, [code](const Range& each) { return code >= each.first && code <= each.last; });
}

std::string escaped_code(char32_t code) {
  std::string text = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += "0123456789abcdef"[code >> shift & 15];
  return text;
}

std::string json_text(std::string_view text, std::size_t max_bytes) {
  std::string escaped;
  while (!text.empty() && escaped.size() < max_bytes) {
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (length == 0) {
      escaped += kReplacementCharacter;
    } else if (first < 0x20 || first == 0x7f) {
      escaped += ' ';
    } else {
      if (first == '"' || first == '\\') escaped += '\\';
      escaped += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

}  // namespace ddprun
