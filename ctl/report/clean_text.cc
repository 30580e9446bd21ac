// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/clean_text.h"

#include "common/log.h"
#include "common/utf8.h"

namespace ddprun::report {
namespace {

// U+061C, U+200B…U+200F, U+2028…U+202E, U+2060…U+206F, U+FEFF; and C1, which are controls.
bool is_hidden(std::string_view letter) {
  if (letter.size() == 2) {
    const auto second = static_cast<unsigned char>(letter[1]);
    return letter == "\xD8\x9C" || (letter[0] == '\xC2' && second < 0xA0);
  }
  if (letter.size() != 3) return false;
  if (letter == "\xEF\xBB\xBF") return true;
  const auto last = static_cast<unsigned char>(letter[2]);
  if (letter.starts_with("\xE2\x80"))
    return (last >= 0x8B && last <= 0x8F) || (last >= 0xA8 && last <= 0xAE);
  return letter.starts_with("\xE2\x81") && last >= 0xA0 && last <= 0xAF;
}

}  // namespace

std::string clean_text(std::string_view text, std::size_t most_bytes) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view letter = text.substr(0, length);
    const std::string shown =
        length == 0 || is_hidden(letter) ? std::string(kReplacementCharacter) : one_line(letter);
    if (clean.size() + shown.size() > most_bytes) return clean + "…";
    clean += shown;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return clean;
}

std::string html_text(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += letter;
    }
  }
  return escaped;
}

}  // namespace ddprun::report
