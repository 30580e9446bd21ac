// SPDX-License-Identifier: Apache-2.0
#include "common/json_text.h"

#include "common/utf8.h"

namespace ddprun {

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
