// SPDX-License-Identifier: Apache-2.0
// Catch2 2 (Debian 12) and 3 (later releases) under one name, and the way this tree skips a test.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace ddprun::test {

// The matcher of a text that has `part` in it. Catch2 3 gave its name to another.
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

// Ends the test case, which counts as skipped. A program whose cases were all skipped exits with
// 77, which ctest knows; a failure wins over any number of skips.
#define DDPRUN_SKIP(reason)            \
  do {                                 \
    ::ddprun::test::note_skip(reason); \
    return;                            \
  } while (false)
