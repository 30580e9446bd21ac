// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/json.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "common/parsed_number.h"
#include "common/utf8.h"

namespace ddprun {
namespace {

constexpr int kMostDepth = 16;
constexpr std::string_view kSpace = " \t\r\n", kEscapes = "\"\\/bfnrt",
                           kEscaped = "\"\\/\b\f\n\r\t";

void append_utf8(std::string& text, std::uint32_t code) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xf0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool has_one_twice(const std::vector<std::string>& names) {
  std::vector<std::string_view> sorted(names.begin(), names.end());
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) != sorted.end();
}

// Each read_…() returns false if it finds no such value; the rest of the text is then meaningless.
class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  bool read_whole(JsonValue& value) {
    if (!read_value(value, 0)) return false;
    skip_space();
    return rest_.empty();
  }

 private:
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpace), rest_.size()));
  }

  bool take(char wanted) {
    skip_space();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool read_value(JsonValue& value, int depth) {
    skip_space();
    if (rest_.empty() || depth > kMostDepth) return false;
    switch (rest_.front()) {
      case '{':
        value.kind = JsonValue::Kind::kObject;
        return read_list('{', '}',
                         [&] {
                           skip_space();
                           return read_text(value.names.emplace_back()) && take(':') &&
                                  read_value(value.items.emplace_back(), depth + 1);
                         }) &&
               !has_one_twice(value.names);
      case '[':
        value.kind = JsonValue::Kind::kArray;
        return read_list('[', ']',
                         [&] { return read_value(value.items.emplace_back(), depth + 1); });
      case '"':
        value.kind = JsonValue::Kind::kText;
        return read_text(value.text);
      default:
        return read_word(value);
    }
  }

  template <typename ReadItem>
  bool read_list(char open, char close, ReadItem read_item) {
    take(open);
    if (take(close)) return true;
    do {
      if (!read_item()) return false;
    } while (take(','));
    return take(close);
  }

  // Reads true, false, null, or a number.
  bool read_word(JsonValue& value) {
    const std::size_t size = std::min(rest_.find_first_of(" \t\r\n,]}"), rest_.size());
    const std::string_view word = rest_.substr(0, size);
    rest_.remove_prefix(size);
    const auto natural = std::from_chars(word.data(), word.data() + size, value.number);
    if (natural.ec == std::errc() && natural.ptr == word.data() + size) {
      value.kind = JsonValue::Kind::kNumber;
      return size == 1 || word.front() != '0';
    }
    if (word == "true" || word == "false" || word == "null") return true;
    double number = 0;
    const auto other = std::from_chars(word.data(), word.data() + size, number);
    return size > 0 && other.ptr == word.data() + size && word.find_first_of("nN") == word.npos;
  }

  bool read_text(std::string& text) {
    if (rest_.empty() || rest_.front() != '"') return false;
    rest_.remove_prefix(1);
    while (!rest_.empty() && rest_.front() != '"') {
      if (rest_.front() == '\\') {
        rest_.remove_prefix(1);
        if (!read_escape(text)) return false;
        continue;
      }
      const std::size_t size = utf8_length(rest_);
      if (size == 0 || static_cast<unsigned char>(rest_.front()) < 0x20) return false;
      text += rest_.substr(0, size);
      rest_.remove_prefix(size);
    }
    if (rest_.empty()) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool read_escape(std::string& text) {
    if (rest_.empty()) return false;
    const char kind = rest_.front();
    rest_.remove_prefix(1);
    if (kind != 'u') {
      const std::size_t place = kEscapes.find(kind);
      if (place == kEscapes.npos) return false;
      text += kEscaped[place];
      return true;
    }
    std::uint32_t code = 0, low = 0;
    if (!read_hex(code) || (code >= 0xdc00 && code < 0xe000)) return false;
    if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
      if (!rest_.starts_with("\\u")) return false;
      rest_.remove_prefix(2);
      if (!read_hex(low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(text, code);
    return true;
  }

  bool read_hex(std::uint32_t& code) {
    constexpr std::size_t kNumHexDigits = 4;
    if (rest_.size() < kNumHexDigits) return false;
    const auto parsed = parsed_number<std::uint32_t>(rest_.substr(0, kNumHexDigits), 16);
    if (!parsed) return false;
    code = *parsed;
    rest_.remove_prefix(kNumHexDigits);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<JsonValue> parse_json(std::string_view text) {
  JsonValue value;
  if (!Parser(text).read_whole(value)) return std::nullopt;
  return value;
}

std::string quote_json(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if (each == '"' || each == '\\') {
      quoted += '\\';
      quoted += each;
    } else if (byte < 0x20) {
      quoted += "\\u00";
      quoted += kDigits[byte >> 4];
      quoted += kDigits[byte & 15];
    } else {
      quoted += each;
    }
  }
  return quoted + '"';
}

}  // namespace ddprun
