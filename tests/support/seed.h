// SPDX-License-Identifier: Apache-2.0
// The seed of a test that draws at random. seeds.py does the same for Python.
#pragma once

#include <cstdint>

namespace ddprun::test {

// Prints and returns the seed of the running test case: $DDPRUN_TEST_SEED, else the one with which
// the case failed last, else a new one. The folder $DDPRUN_TEST_SEEDS, which ctest sets, keeps the
// seed from this call on. Without that variable nothing is kept. A case calls this once.
std::uint64_t seed();

// Removes the kept seeds. The program's main calls it after a success.
void forget_seeds();

}  // namespace ddprun::test
