// SPDX-License-Identifier: Apache-2.0
// The parts of texts that the kernel, a program or a user wrote. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "common/log.h"

namespace ddprun {

// Takes the part before the first of `ends`, and drops that character. If there is none, takes all.
inline std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::string_view part = text.substr(0, text.find_first_of(ends));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

// "1 node", "2 nodes"; `number`: an integer, or such words as "1:2", which are several.
template <typename Number>
std::string counted(const Number& number, std::string_view one) {
  std::string text = concat(number, " ", one);
  return text.starts_with("1 ") ? text : text + "s";
}

}  // namespace ddprun
