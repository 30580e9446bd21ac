// SPDX-License-Identifier: Apache-2.0
// Catch2 2 (Debian 12) and 3 under one name, and the way this tree skips a test.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>

// Ends the test case; ctest counts it as skipped and shows the reason.
#define DDPRUN_SKIP(reason)                 \
  do {                                      \
    std::printf("SKIPPED: %s\n", (reason)); \
    std::fflush(stdout);                    \
    return;                                 \
  } while (false)
