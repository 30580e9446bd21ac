// SPDX-License-Identifier: Apache-2.0
// Cases for runner_test.py, which looks at this program's exit status. ctest doesn't run them.
#include <cstdio>
#include <cstdlib>

#include "tests/support/catch.h"
#include "tests/support/seed.h"

namespace ddprun::test {

TEST_CASE("passes") { CHECK(true); }
TEST_CASE("fails") { CHECK(false); }
TEST_CASE("skips") { DDPRUN_SKIP("no etcd"); }
TEST_CASE("skips, too") { DDPRUN_SKIP("no root"); }
TEST_CASE("prints SKIPPED and fails") {
  std::puts("SKIPPED: not really");
  CHECK(false);
}
TEST_CASE("draws") {
  seed();
  CHECK(std::getenv("FAIL") == nullptr);
}

}  // namespace ddprun::test
