// SPDX-License-Identifier: Apache-2.0
#include "common/byte_text.h"

#include <array>
#include <cstddef>

namespace ddprun {
namespace {

int value_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNone = 0xff;

constexpr std::array<std::uint8_t, 256> make_values() {
  std::array<std::uint8_t, 256> values{};
  for (auto& value : values) value = kNone;
  for (std::uint8_t i = 0; i < 64; ++i) values[static_cast<unsigned char>(kAlphabet[i])] = i;
  return values;
}
constexpr auto kValues = make_values();

std::uint32_t byte_at(std::string_view bytes, std::size_t i) {
  return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
}

}  // namespace

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool from_hex(std::string_view text, std::span<std::uint8_t> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int high = value_of(text[2 * i]);
    const int low = value_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '=');
  std::size_t to = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 3, to += 4) {
    const std::uint32_t group =
        byte_at(bytes, i) << 16 | byte_at(bytes, i + 1) << 8 | byte_at(bytes, i + 2);
    text[to] = kAlphabet[group >> 18];
    text[to + 1] = kAlphabet[group >> 12 & 63];
    if (i + 1 < bytes.size()) text[to + 2] = kAlphabet[group >> 6 & 63];
    if (i + 2 < bytes.size()) text[to + 3] = kAlphabet[group & 63];
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const std::size_t digits = i + 4 == text.size() ? 4 - padding : 4;
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < digits; ++j) {
      const std::uint8_t value = kValues[static_cast<unsigned char>(text[i + j])];
      if (value == kNone) return std::nullopt;
      group |= std::uint32_t{value} << (18 - 6 * j);
    }
    if (digits < 4 && (group & (digits == 3 ? 0xff : 0xffff)) != 0) return std::nullopt;
    for (std::size_t j = 0; j + 1 < digits; ++j) {
      bytes.push_back(static_cast<char>(group >> (16 - 8 * j) & 0xff));
    }
  }
  return bytes;
}

}  // namespace ddprun
