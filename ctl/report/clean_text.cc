// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/clean_text.h"

#include "common/log.h"
#include "common/utf8.h"

namespace ddprun::report {

std::string clean_text(std::string_view text, std::size_t most_bytes) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view letter = text.substr(0, length);
    const std::string shown = length == 0 ? std::string(kReplacementCharacter) : one_line(letter);
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
