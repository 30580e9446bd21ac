// SPDX-License-Identifier: Apache-2.0
// Whole numbers as people read them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddprun::ctl {

// "12,345"
inline std::string whole_text(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace ddprun::ctl
