// SPDX-License-Identifier: Apache-2.0
// What makes a job's name one of its own, where the scheduler doesn't.
#pragma once

#include <array>
#include <string>

#include "common/random_id.h"

namespace ddprun::submit {

// In its place in a plan.
inline constexpr char kSuffixToCome[] = "xxxxx";

// "k3v9x": 5 small letters and digits, those that look like others left out. Throws Error(kSystem).
inline std::string drawn_suffix() {
  constexpr char kLetters[] = "23456789bcdfghjkmnpqrstvwxz";
  std::array<std::uint8_t, 5> bytes{};
  draw_random(bytes);
  std::string suffix;
  for (const std::uint8_t byte : bytes) suffix += kLetters[byte % (sizeof kLetters - 1)];
  return suffix;
}

}  // namespace ddprun::submit
