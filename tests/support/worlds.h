// SPDX-License-Identifier: Apache-2.0
// The number of worlds of a random test: `all` without sanitizers, `few` with them, since these
// look for memory errors and races. DDPRUN_SOAK=1: ten times as many.
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
