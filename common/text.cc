// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"

#include <charconv>
#include <iterator>

#include "common/utf8.h"

namespace ddprun {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

template <typename... Number>
void append_digits(std::string& text, Number... number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, std::end(digits), number...).ptr);
}

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

void append_streamed(std::string& text, long long number) { append_digits(text, number); }
void append_streamed(std::string& text, unsigned long long number) { append_digits(text, number); }
void append_streamed(std::string& text, double number) {
  append_digits(text, number, std::chars_format::general, 6);
}

std::vector<std::string_view> parts_between(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string> filled_parts(std::string_view text, std::string_view separators) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::string_view part = take_until(text, separators);
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (byte == '\n') {
      line += "\\n";
    } else if (byte == '\t') {
      line += "\\t";
    } else if (byte < ' ' || byte == 0x7f) {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else if (length > 1 && is_hidden(utf8_code(text))) {
      line += escaped_code(utf8_code(text));
    } else {
      line += text.substr(0, std::max<std::size_t>(length, 1));  // also a byte of no character
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return line;
}

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
