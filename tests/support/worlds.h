// SPDX-License-Identifier: Apache-2.0
// How many worlds a random test looks at: all of them in a release build, a few under sanitizers,
// which are there for memory and races. DDPRUN_SOAK=1: ten times as many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace ddprun::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
#else
inline constexpr bool kIsSanitized = false;
#endif

inline std::uint64_t num_worlds(std::uint64_t all) {
  const std::uint64_t few = 20;
  const std::uint64_t factor = std::getenv("DDPRUN_SOAK") != nullptr ? 10 : 1;
  return (kIsSanitized ? std::min(all, few) : all) * factor;
}

}  // namespace ddprun::test
