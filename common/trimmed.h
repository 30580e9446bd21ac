// SPDX-License-Identifier: Apache-2.0
// Removes the blanks and tabs at the ends of a text.
#pragma once

#include <string_view>

namespace ddprun {

inline std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace ddprun
