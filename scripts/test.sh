#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must pass before a change is merged. Installs what is missing, builds, runs the
# tests; ends with ctest's summary of the release build and one line that says what happened.
#
#   scripts/test.sh [--only PART[,PART…]] [--skip PART[,PART…]] [--jobs N] [--thorough] [--list]
#     checks   arrows, coroutines, formatting (seconds; installs clang-format only)
#     asan     build with AddressSanitizer and UBSan, tests without LibTorch and, but with
#              --thorough, without the slow ones
#     tsan     build with ThreadSanitizer, the tests of what has threads
#     fuzz     each fuzzer for 20 s
#     tidy     clang-tidy over the sources
#     release  the release build and all tests, PyTorch's included; without --thorough those that
#              neither wait nor measure are AddressSanitizer's alone
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

parts=(checks asan tsan fuzz tidy release)
only="" skip="" jobs=$(nproc) slow='|slow' logic=-DDDPRUN_TEST_LOGIC=OFF

usage() { sed -n '3,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --only=*|--skip=*|--jobs=*) flag=${1%%=*} value=${1#*=}; shift ;;
    --only|--skip|--jobs) flag=$1 value=${2:-}; shift; [ $# -eq 0 ] || shift ;;
    --thorough) slow="" logic=-DDDPRUN_TEST_LOGIC=ON; shift; continue ;;
    --list) printf '%s\n' "${parts[@]}"; exit 0 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "test: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  case $flag in
    --jobs) [[ $value =~ ^[1-9][0-9]*$ ]] ||
      { echo "test: --jobs needs a number from 1, not '$value'" >&2; exit 2; }
      jobs=$value ;;
    *) [[ $value =~ [^,] ]] ||
      { echo "test: $flag needs a part; there are: ${parts[*]}" >&2; exit 2; }
      [ "$flag" = --only ] && only=$value || skip=$value ;;
  esac
done
for name in ${only//,/ } ${skip//,/ }; do
  [[ " ${parts[*]} " == *" $name "* ]] ||
    { echo "test: no part '$name'; there are: ${parts[*]}" >&2; exit 2; }
done

passed=() failed=() second_tries=() why=()  # why: what failed in a part
started=$SECONDS

is_wanted() {
  { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; } && [[ ",$skip," != *",$1,"* ]]
}

# Runs `part_NAME`; keeps going after a failure, so that one run shows everything.
run_part() {
  local name=$1 begin=$SECONDS
  is_wanted "$name" || return 0
  printf '\n=== %s\n' "$name"
  if "part_$name"; then
    passed+=("$name $((SECONDS - begin))s")
    printf '=== %s: passed in %d s\n' "$name" $((SECONDS - begin))
  else
    failed+=("$name")
    printf '=== %s: FAILED\n' "$name"
  fi
}

# Several files are compiled at a time; clang-tidy shows which of them lacks an include. ccache is better off without, and in CI, where nothing is built twice, it only
# costs time.
once=-DDDPRUN_BUILD_ONCE=ON ccache=()
if [ -n "${CI:-}" ]; then
  ccache=(-DDDPRUN_CCACHE=OFF)
elif [ -n "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] || command -v ccache >/dev/null; then
  once=-DDDPRUN_BUILD_ONCE=OFF
fi

# Builds target $2 of preset $1 with further cache entries in the rest. On a terminal ninja shows where it is;
# elsewhere it is quiet unless it fails.
build() {
  local preset=$1 target=$2 log status=0
  shift 2
  log=$(mktemp)
  if ! cmake --preset "$preset" -DDDPRUN_BUILD_TESTS=ON "${ccache[@]}" "$@" >"$log" 2>&1; then
    status=1
  else
    sed -n 's/^-- \(ddprun \|  \)/  \1/p' "$log"
    if [ -t 1 ]; then
      : >"$log"
      cmake --build "build/$preset" -j "$jobs" --target "$target" || status=1
    else
      cmake --build "build/$preset" -j "$jobs" --target "$target" >"$log" 2>&1 || status=1
    fi
  fi
  [ $status -eq 0 ] || { tail -n 80 "$log"; why+=("$preset: the build failed"); }
  rm -f "$log"
  return $status
}

# Addresses that are not randomised: GCC 12's ThreadSanitizer aborts under a kernel that randomises
# more bits than it knows.
fixed_addresses=()
if setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi

names_of_failed() {
  sed 's/^[0-9]*://' "build/$1/Testing/Temporary/LastTestsFailed.log" 2>/dev/null | tr '\n' ';'
}

# A test that fails beside others is tried once more, alone: a machine that stood still for a second
# is no reason to refuse a change. It is named on the last line then, and is a bug until shown
# otherwise.
# The tests that take long wait most of the time: with one more than there are cores these have enough
# to do.
run_ctest() {
  local preset=$1
  shift
  local ctest=("${fixed_addresses[@]}" ctest --test-dir "build/$preset" --output-on-failure
               --no-tests=error)
  "${ctest[@]}" -j $((jobs + 1)) "$@" && return 0
  local names
  names=$(names_of_failed "$preset")
  printf '\ntest: once more, alone: %s\n' "$names"
  if ! "${ctest[@]}" -j 1 --rerun-failed; then
    why+=("$preset: failed twice: $(names_of_failed "$preset")")
    return 1
  fi
  second_tries+=("$preset: $names")
}

part_checks() {
  local status=0
  scripts/check_arrows.py --self-test && scripts/check_arrows.py || status=1
  scripts/check_coroutines.py --self-test && scripts/check_coroutines.py || status=1
  scripts/check_test_names.py --self-test && scripts/check_test_names.py || status=1
  scripts/format.sh --check || status=1
  return $status
}
part_asan() {
  build asan all -DDDPRUN_BUILD_BENCH=OFF "$once" &&
    ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
    UBSAN_OPTIONS=print_stacktrace=1 run_ctest asan -LE "torch|gpu|once$slow"
}
part_tsan() {
  build tsan thread_tests -DDDPRUN_BUILD_BENCH=OFF "$once" &&
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 run_ctest tsan -LE 'torch|gpu|once'
}
part_fuzz() {
  # One seed: a change is judged by what it changes, and what is found here is found again by hand.
  # scripts/soak.sh looks further, from another seed each time.
  scripts/fuzz.sh 20 1 && return 0
  why+=("fuzz: $(head -c 2000 build/fuzz/found 2>/dev/null || echo 'the build failed')")
  return 1
}
part_tidy() {
  cmake --preset release -DDDPRUN_BUILD_TESTS=ON -DDDPRUN_BUILD_ONCE=OFF >/dev/null && scripts/tidy.py --seconds 100
}
part_release() { build release all -DDDPRUN_BUILD_BENCH=ON "$once" "$logic" && run_ctest release; }

# The checks alone need no PyTorch.
level=checks
for name in "${parts[@]}"; do
  if [ "$name" = checks ]; then continue; fi
  if is_wanted "$name"; then level=full; fi
done
if ! scripts/setup.sh "$level"; then
  echo "test: the set-up failed; nothing was tested"
  exit 1
fi
for part in "${parts[@]}"; do run_part "$part"; done

summary="${passed[*]:-none} ($((SECONDS - started)) s)"
[ ${#second_tries[@]} -eq 0 ] || summary+="; passed at the second try only: ${second_tries[*]}"
if [ ${#failed[@]} -gt 0 ]; then
  [ ${#why[@]} -eq 0 ] || printf 'test: %s\n' "${why[@]}"
  echo "test: FAILED: ${failed[*]}; passed: $summary"
  exit 1
fi
echo "test: all passed: $summary"
