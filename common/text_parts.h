// SPDX-License-Identifier: Apache-2.0
// The parts of texts that the kernel, a program or a user wrote. Pure.
#pragma once

#include <algorithm>
#include <string_view>

namespace ddprun {

// What comes before the first of `ends`, which is taken off, too; all of it where there is none.
inline std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::string_view part = text.substr(0, text.find_first_of(ends));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

}  // namespace ddprun
