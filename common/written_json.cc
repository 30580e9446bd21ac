// SPDX-License-Identifier: Apache-2.0
#include "common/written_json.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/utf8.h"

namespace ddprun {
namespace {

// Writes a decimal number; very large and very small ones keep their power of ten.
std::string decimal_text(double number) {
  constexpr double kLeast = 1e-6, kMost = 1e17;
  char digits[64];
  const double size = std::fabs(number);
  const bool is_plain = size == 0 || (size >= kLeast && size < kMost);
  const auto end = is_plain
                       ? std::to_chars(digits, std::end(digits), number, std::chars_format::fixed)
                       : std::to_chars(digits, std::end(digits), number);
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string written_json(const boost::json::value& value) {
  const std::string text = boost::json::serialize(value);
  std::string result;
  result.reserve(text.size());
  std::size_t copied = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      while (text[++i] != '"') i += text[i] == '\\' ? 1 : 0;
      // Boost writes an E in each double, and nowhere else outside strings.
    } else if (text[i] == 'E') {
      const std::size_t begin = text.find_last_of("[{,:", i) + 1;
      double number = 0;
      const auto end = std::from_chars(text.data() + begin, text.data() + text.size(), number);
      result.append(text, copied, begin - copied).append(decimal_text(number));
      copied = static_cast<std::size_t>(end.ptr - text.data());
      i = copied - 1;
    }
  }
  return shown_json(std::move(result.append(text, copied)));
}

std::string shown_json(std::string json) {
  constexpr unsigned char kDel = 0x7f;
  const auto first = std::find_if(json.begin(), json.end(), [](char letter) {
    return static_cast<unsigned char>(letter) >= kDel;
  });
  if (first == json.end()) return json;  // nearly all texts end here
  std::string_view rest(json);
  rest.remove_prefix(static_cast<std::size_t>(first - json.begin()));
  std::string result(json.begin(), first);
  while (!rest.empty()) {
    const std::size_t length = utf8_length(rest);
    const char32_t code = length == 0 ? 0 : utf8_code(rest);
    const std::size_t taken = std::max<std::size_t>(length, 1);  // also a byte of no character
    if (code == kDel || is_hidden(code)) {
      result += escaped_code(code);
    } else {
      result += rest.substr(0, taken);
    }
    rest.remove_prefix(taken);
  }
  return result;
}

}  // namespace ddprun
