// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/keys.h"

#include <cstddef>
#include <optional>

namespace ddprun::top {
namespace {

constexpr char kEscapeByte = '\x1b';

std::optional<Key> letter_key(char letter) {
  if (letter >= '0' && letter <= '9') {
    return static_cast<Key>(static_cast<int>(Key::kDigit0) + (letter - '0'));
  }
  switch (letter) {
    case 'q':
    case 'Q':
      return Key::kQuit;
    case 'k':
      return Key::kUp;
    case 'j':
      return Key::kDown;
    case 'g':
      return Key::kFirst;
    case 'G':
      return Key::kLast;
    case 'b':
      return Key::kPageUp;
    case ' ':
      return Key::kPageDown;
    case '\r':
    case '\n':
      return Key::kEnter;
    case '\t':
      return Key::kTab;
    case 'n':
      return Key::kSort;
    case 'l':
      return Key::kOutput;
    case '[':
      return Key::kRankBefore;
    case ']':
      return Key::kRankAfter;
    case '\x7f':
    case '\b':
      return Key::kErase;
    case '?':
    case 'h':
      return Key::kHelp;
    case '\x0c':
      return Key::kRedraw;
    default:
      return std::nullopt;
  }
}

// What follows ESC [ or ESC O.
std::optional<Key> sequence_key(std::string_view sequence) {
  if (sequence == "A") return Key::kUp;
  if (sequence == "B") return Key::kDown;
  if (sequence == "C") return Key::kRankAfter;
  if (sequence == "D") return Key::kRankBefore;
  if (sequence == "H" || sequence == "1~" || sequence == "7~") return Key::kFirst;
  if (sequence == "F" || sequence == "4~" || sequence == "8~") return Key::kLast;
  if (sequence == "5~") return Key::kPageUp;
  if (sequence == "6~") return Key::kPageDown;
  if (sequence == "Z") return Key::kTab;
  if (sequence == "M") return Key::kEnter;
  return std::nullopt;
}

}  // namespace

std::vector<Key> KeyReader::take(std::string_view bytes) {
  std::vector<Key> keys;
  const auto add = [&keys](std::optional<Key> key) {
    if (key) keys.push_back(*key);
  };
  for (const char byte : bytes) {
    if (begun_.empty()) {
      if (byte == kEscapeByte) {
        begun_ = byte;
      } else {
        add(letter_key(byte));
      }
    } else if (begun_.size() == 1) {
      if (byte == '[' || byte == 'O') {
        begun_ += byte;
      } else {  // the key itself, or Alt and a letter
        if (byte == kEscapeByte) add(Key::kEscape);
        begun_.assign(byte == kEscapeByte ? 1 : 0, kEscapeByte);
      }
    } else {
      constexpr std::size_t kLongest = 16;
      begun_ += byte;
      const bool is_end = byte >= '@' && byte <= '~';
      if (is_end) add(sequence_key(std::string_view(begun_).substr(2)));
      if (is_end || begun_.size() > kLongest) begun_.clear();
    }
  }
  if (begun_.size() == 1) {  // a terminal sends a sequence at once: it was the key
    add(Key::kEscape);
    begun_.clear();
  }
  return keys;
}

}  // namespace ddprun::top
