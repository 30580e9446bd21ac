#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What scripts/test.sh has done behind its tests, which wait most of the time: the builds that they
# need, in their order, then what only computes. Each step's output is in build/test-STEP.log; here
# goes one line a step when it has ended: STEP STATUS SECONDS.
#
#   scripts/test_behind.sh JOBS STEP…     steps: asan tsan release fuzz tidy
#     DDPRUN_TEST_LOGIC=ON    the release build has the tests that AddressSanitizer runs too
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
jobs=$1
shift

# With what the tests leave of the cores: they measure times, and some are in sessions of their own,
# which are what the kernel shares the cores between where it groups them.
chrt --idle --pid 0 $$ 2>/dev/null || true
{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true

# Several files are compiled at a time; clang-tidy shows which of them lacks an include.
once=-DDDPRUN_BUILD_ONCE=ON

# Builds target $2 of preset $1 with further cache entries in the rest.
build() {
  local preset=$1 target=$2
  shift 2
  cmake --preset "$preset" -DDDPRUN_BUILD_TESTS=ON "$@" &&
    cmake --build "build/$preset" -j "$jobs" --target "$target"
}

step_asan() { build asan all -DDDPRUN_BUILD_BENCH=OFF "$once"; }
step_tsan() { build tsan thread_tests -DDDPRUN_BUILD_BENCH=OFF "$once"; }
step_release() {
  build release all -DDDPRUN_BUILD_BENCH=ON "$once" -DDDPRUN_TEST_LOGIC="${DDPRUN_TEST_LOGIC:-OFF}"
}
# One seed: a change is judged by what it changes, and what is found here is found again by hand.
# scripts/soak.sh looks further, from another seed each time.
step_fuzz() { scripts/fuzz.sh 20 1; }
step_tidy() {
  cmake --preset release -B build/tidy -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_BENCH=OFF >/dev/null &&
    scripts/tidy.py --build build/tidy --seconds 60
}

mkdir -p build
for step in "$@"; do
  begin=$SECONDS
  "step_$step" >"build/test-$step.log" 2>&1 </dev/null
  printf '%s %d %d\n' "$step" $? $((SECONDS - begin))
done
