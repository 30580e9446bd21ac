// SPDX-License-Identifier: Apache-2.0
#include "common/template_text.h"

namespace ddprun {
namespace {

bool begins_name(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '_';
}

// Returns the number of bytes of the name at the beginning of `text`.
std::size_t name_bytes(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size() &&
         (begins_name(text[size]) || (size > 0 && text[size] >= '0' && text[size] <= '9'))) {
    ++size;
  }
  return size;
}

}  // namespace

std::string safe_substitute(std::string_view text, const std::map<std::string, std::string>& values,
                            DoubleDollar dollars) {
  std::string result;
  while (!text.empty()) {
    const std::size_t plain = text.find('$');
    result += text.substr(0, plain);
    if (plain == std::string_view::npos) break;
    text.remove_prefix(plain + 1);
    if (text.starts_with('$')) {
      result += dollars == DoubleDollar::kStays ? "$$" : "$";
      text.remove_prefix(1);
      continue;
    }
    const bool braced = text.starts_with('{');
    const std::size_t size = name_bytes(text.substr(braced ? 1 : 0));
    const bool is_name = size > 0 && (!braced || text.substr(1 + size).starts_with('}'));
    const auto value =
        is_name ? values.find(std::string(text.substr(braced ? 1 : 0, size))) : values.end();
    if (value == values.end()) {
      result += '$';  // the following text up to the next "$" is copied in the next round
    } else {
      result += value->second;
      text.remove_prefix(braced ? size + 2 : size);
    }
  }
  return result;
}

}  // namespace ddprun
