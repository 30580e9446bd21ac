// SPDX-License-Identifier: Apache-2.0
// How many worlds a random test looks at: all of them in a release build, a few under sanitizers,
// which are there for memory and races. DDPRUN_SOAK=1: ten times as many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tests/support/sanitizers.h"

namespace ddprun::test {

inline std::uint64_t num_worlds(std::uint64_t all) {
  const std::uint64_t few = 10;
  const std::uint64_t factor = std::getenv("DDPRUN_SOAK") != nullptr ? 10 : 1;
  return (kIsSanitized ? std::min(all, few) : all) * factor;
}

}  // namespace ddprun::test
