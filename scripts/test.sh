#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must pass before a change is merged. Installs what is missing, builds, runs the
# tests; ends with ctest's summary of the release build and one line that says what happened. Builds,
# fuzzers and clang-tidy go on behind the tests (scripts/test_behind.sh), their output into
# build/test-STEP.log.
#
#   scripts/test.sh [--only PART[,PART…]] [--skip PART[,PART…]] [--jobs N] [--thorough] [--list]
#     checks   arrows, coroutines, formatting (seconds; installs clang-format only)
#     asan     build with AddressSanitizer and UBSan, tests without LibTorch and, but with
#              --thorough, without the slow ones
#     tsan     build with ThreadSanitizer, the tests of what has threads
#     release  the release build and all tests, PyTorch's included; without --thorough those that
#              neither wait nor measure are AddressSanitizer's alone
#     fuzz     each fuzzer for 20 s
#     tidy     clang-tidy over the sources
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

parts=(checks asan tsan release fuzz tidy)
only="" skip="" jobs=$(nproc) slow='|slow' logic=OFF

usage() { sed -n '3,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --only=*|--skip=*|--jobs=*) flag=${1%%=*} value=${1#*=}; shift ;;
    --only|--skip|--jobs) flag=$1 value=${2:-}; shift; [ $# -eq 0 ] || shift ;;
    --thorough) slow="" logic=ON; shift; continue ;;
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
closing=""  # ctest's words on the last tests
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

# Starts what goes on behind the tests, in a session of its own, which ends with this script.
declare -A ended=()  # step → its exit status
start_behind() {
  [ $# -gt 0 ] || return 0
  exec {behind}< <(DDPRUN_TEST_LOGIC=$logic exec setsid scripts/test_behind.sh "$jobs" "$@")
  session=$!
  trap 'kill -- "-$session" 2>/dev/null' EXIT
}

# Waits until step $1 has ended; its exit status.
await() {
  local step status seconds
  while [ -z "${ended[$1]:-}" ]; do
    read -r -u "$behind" step status seconds || { why+=("$1: what goes on behind the tests was ended"); return 1; }
    ended[$step]=$status
    printf 'test: %s behind the tests: %d s\n' "$step" "$seconds"
  done
  return "${ended[$1]}"
}

await_build() {
  if ! await "$1"; then
    tail -n 80 "build/test-$1.log"
    why+=("$1: the build failed")
    return 1
  fi
  sed -n 's/^-- \(ddprun \|  \)/  \1/p' "build/test-$1.log"
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
  local preset=$1 log=build/test-ctest.log status names
  shift
  local ctest=("${fixed_addresses[@]}" ctest --test-dir "build/$preset" --output-on-failure
               --no-tests=error)
  "${ctest[@]}" -j $((jobs + 1)) "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  closing=$(grep 'tests passed' "$log")
  [ "$status" -ne 0 ] || return 0
  names=$(names_of_failed "$preset")
  printf '\ntest: once more, alone: %s\n' "$names"
  kill -STOP -- "-$session"
  "${ctest[@]}" -j 1 --rerun-failed
  status=$?
  kill -CONT -- "-$session"
  if [ $status -ne 0 ]; then
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
  await_build asan &&
    ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
    UBSAN_OPTIONS=print_stacktrace=1 run_ctest asan -LE "torch|gpu|once$slow"
}
part_tsan() {
  await_build tsan &&
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 run_ctest tsan -LE 'torch|gpu|once'
}
part_release() { await_build release && run_ctest release; }
part_fuzz() {
  await fuzz && cat build/test-fuzz.log && return 0
  tail -n 200 build/test-fuzz.log
  why+=("fuzz: $(head -c 2000 build/fuzz/found 2>/dev/null || echo 'the build failed')")
  return 1
}
part_tidy() {
  local status=0
  await tidy || status=1
  cat build/test-tidy.log
  return $status
}

# The checks alone need no PyTorch.
level=checks behind_steps=()
for name in "${parts[@]}"; do
  if [ "$name" = checks ] || ! is_wanted "$name"; then continue; fi
  level=full
  behind_steps+=("$name")
done
if ! scripts/setup.sh "$level"; then
  echo "test: the set-up failed; nothing was tested"
  exit 1
fi
start_behind "${behind_steps[@]}"
for part in "${parts[@]}"; do run_part "$part"; done

[ -z "$closing" ] || printf '\n%s\n' "$closing"
summary="${passed[*]:-none} ($((SECONDS - started)) s)"
[ ${#second_tries[@]} -eq 0 ] || summary+="; passed at the second try only: ${second_tries[*]}"
if [ ${#failed[@]} -gt 0 ]; then
  [ ${#why[@]} -eq 0 ] || printf 'test: %s\n' "${why[@]}"
  echo "test: FAILED: ${failed[*]}; passed: $summary"
  exit 1
fi
echo "test: all passed: $summary"
