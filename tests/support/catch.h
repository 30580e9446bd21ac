// SPDX-License-Identifier: Apache-2.0
// Includes Catch2, version 2 (Debian 12) or 3 (later releases). Has this tree's way to skip a test.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace ddprun::test {

// Returns a matcher of texts that contain `part`. In Catch2 3 this name is another matcher's.
inline auto Contains(const std::string& part) {
#if CATCH_VERSION_MAJOR >= 3
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

// Prints the reason and marks the running test case as skipped.
void note_skip(const char* reason);

}  // namespace ddprun::test

// Ends the test case as skipped. A program exits with 77, which ctest counts as skipped, if all of
// its cases were skipped. One failure wins over any number of skips.
#define DDPRUN_SKIP(reason)            \
  do {                                 \
    ::ddprun::test::note_skip(reason); \
    return;                            \
  } while (false)
