// SPDX-License-Identifier: Apache-2.0
// What is typed at a terminal, as keys. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::top {

enum class Key {
  kQuit,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kFirst,
  kLast,
  kEnter,
  kTab,
  kSort,
  kHelp,
  kEscape,
  kRedraw,
  kOutput,
  kRankBefore,
  kRankAfter,
  kErase,
  kDigit0,
  kDigit9 = kDigit0 + 9  // and those between
};

// Bytes in, keys out; an escape sequence may come in pieces. What is no key of ours is passed over.
class KeyReader {
 public:
  std::vector<Key> take(std::string_view bytes);

 private:
  std::string begun_;  // of an escape sequence
};

}  // namespace ddprun::top
