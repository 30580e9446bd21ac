#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs work of scripts/test.sh behind its tests, which wait most of the time. First come the builds that they need, in
# their order, then what only computes. Each step's output is in build/test-STEP.log. The first line here is the
# session's number, then one line a step when it has ended: STEP STATUS SECONDS CORE-SECONDS.
#
#   scripts/test_behind.sh JOBS STEP…     steps: wheels asan release tsan fuzz tidy; the wheels are fetched
#                                         beside the others, until one needs them
#     DDPRUN_TEST_LOGIC=ON      the release build has the tests that AddressSanitizer runs too
#     DDPRUN_TEST_LEVEL=nightly clang-tidy looks at all files; the sanitizers' builds have DDPRUN_NIGHTLY
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
jobs=$1
shift

# Uses only the CPU time that the tests leave, since they measure times. Some tests are in sessions of their own. With
# autogroups the kernel shares the cores between sessions.
chrt --idle --pid 0 $$ 2>/dev/null || true
{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true

# Builds target $2 of preset $1. Further arguments are cache entries.
build() {
  local preset=$1 target=$2
  shift 2
  cmake --preset "$preset" -DDDPRUN_BUILD_TESTS=ON -DDDPRUN_BUILD_BENCH=OFF -DDDPRUN_BUILD_ONCE=ON "$@" &&
    cmake --build "build/$preset" -j "$jobs" --target "$target"
}

wheels=""
await_wheels() { [ -z "$wheels" ] || wait "$wheels"; }
# Each build looks for the headers of CUDA and NCCL, which may come only with the wheels.
await_nccl() { [ -e /usr/local/cuda/include/nccl.h ] || await_wheels; }

step_wheels() { scripts/setup.sh full; }
# The programs of scripts/gpu_check.sh must compile, though they run elsewhere. The other benchmarks aren't built.
step_release() {
  await_wheels && build release all -DDDPRUN_TEST_LOGIC="${DDPRUN_TEST_LOGIC:-OFF}" &&
    build release gpu_programs -DDDPRUN_BUILD_BENCH=ON
}
nightly=OFF
[ "${DDPRUN_TEST_LEVEL:-}" != nightly ] || nightly=ON
step_asan() { await_nccl && build asan all -DDDPRUN_NIGHTLY=$nightly; }
step_tsan() { await_nccl && build tsan thread_tests -DDDPRUN_NIGHTLY=$nightly; }
# Always the same seed, so that only the change under test makes a difference and a finding can be reproduced.
# scripts/soak.sh uses another seed each time.
step_fuzz() { scripts/fuzz.sh 5 1; }
step_tidy() {
  local all=()
  [ $nightly = OFF ] || all=(--all --alone)
  await_wheels &&
    cmake --preset release -B build/tidy -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_BENCH=OFF -DDDPRUN_WITH_TORCH=ON \
      -DDDPRUN_BUILD_ONCE=OFF -DDDPRUN_WERROR=OFF -DDDPRUN_FIND_WHEELS=ON >/dev/null && scripts/tidy.py "${all[@]}"
}

echo $$
mkdir -p build
TIMEFORMAT='%0R %0U %0S'
run_step() {
  local step=$1 status seconds user system
  { time "step_$step" >"build/test-$step.log" 2>&1 </dev/null; } 2>"build/test-$step.time"
  status=$?
  read -r seconds user system <"build/test-$step.time"
  printf '%s %d %d %d\n' "$step" $status "$seconds" $((user + system))
  return $status
}
for step in "$@"; do
  if [ "$step" = wheels ]; then
    run_step wheels &
    wheels=$!
  else
    run_step "$step"
  fi
done
wait
