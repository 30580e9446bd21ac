// SPDX-License-Identifier: Apache-2.0
// The seed of a test that draws at random; seeds.py is the same for Python.
#pragma once

#include <cstdint>

namespace ddprun::test {

// Prints and returns the seed of the running test case: $DDPRUN_TEST_SEED, else the one that the
// case last failed with, else a new one. $DDPRUN_TEST_SEEDS, which ctest sets, is the folder that
// keeps it from the first try on; without that variable nothing is kept. Call it once a case.
std::uint64_t seed();

// Removes what seed() has kept; the program's main calls it after a success.
void forget_seeds();

}  // namespace ddprun::test
