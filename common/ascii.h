// SPDX-License-Identifier: Apache-2.0
// ASCII letters compared without case, whatever the locale.
#pragma once

#include <algorithm>
#include <string_view>

namespace ddprun {

constexpr char ascii_lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

inline bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, ascii_lower, ascii_lower);
}

}  // namespace ddprun
