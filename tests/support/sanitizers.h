// SPDX-License-Identifier: Apache-2.0
// The sanitizer with which a test is built. g++ and clang tell it in different ways.
#pragma once

namespace ddprun::test {

#if !defined(__has_feature)
#define DDPRUN_HAS_FEATURE(name) 0
#else
#define DDPRUN_HAS_FEATURE(name) __has_feature(name)
#endif

#if defined(__SANITIZE_ADDRESS__) || DDPRUN_HAS_FEATURE(address_sanitizer)
inline constexpr bool kHasAddressSanitizer = true;
#else
inline constexpr bool kHasAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || DDPRUN_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kHasThreadSanitizer = true;
#else
inline constexpr bool kHasThreadSanitizer = false;
#endif

inline constexpr bool kIsSanitized = kHasAddressSanitizer || kHasThreadSanitizer;

// Returns `all` in a build without sanitizers, else `few`. Sanitizers look for memory errors and
// races, which `few` show as well.
template <typename T>
constexpr T fewer_if_sanitized(T all, T few) {
  return kIsSanitized ? few : all;
}

#undef DDPRUN_HAS_FEATURE

}  // namespace ddprun::test
