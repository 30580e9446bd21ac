// SPDX-License-Identifier: Apache-2.0
// A code that proves a secret (HMAC-SHA256).
#pragma once

#include <array>
#include <cstdint>

namespace ddprun::security {

// "==" would tell a stranger by its time how much of a guess is right: is_same() compares
// (proof.h).
struct Mac : std::array<std::uint8_t, 32> {
  template <typename Other>
  bool operator==(const Other&) const = delete;
  template <typename Other>
  bool operator<=>(const Other&) const = delete;
};

}  // namespace ddprun::security
