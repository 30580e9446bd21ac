#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs the tests. Prints each part's core-seconds and wall time, then
# ctest's summary and one line that says what happened. Builds go on behind the tests
# (scripts/test_behind.sh), their output into build/test-STEP.log.
#
#   scripts/test.sh [--ci|--nightly] [--only PART[,PART…]] [--skip PART[,PART…]] [--jobs N] [--list]
#     without a level: checks, and release but for what needs LibTorch or PyTorch (label torch)
#     --ci       all parts: what a change must pass; in a new build folder warnings are errors
#     --nightly  all parts with the tests labelled nightly, the slow ones under AddressSanitizer, clang-tidy
#                over all files, and three parts more
#   Parts:
#     demo     in a new clone scripts/demo.sh, as a newcomer runs it, before anything else is installed
#     checks   arrows, names, formatting (seconds; installs clang-format only)
#     asan     build with AddressSanitizer and UBSan, tests without LibTorch
#     release  the release build and its tests; where asan runs too, the tests that measure nothing are
#              asan's alone
#     tsan     build with ThreadSanitizer, the tests of what has threads
#     fuzz     each fuzzer for 5 s
#     tidy     clang-tidy over the sources of the change
#   Parts of --nightly alone:
#     clone     this script without a level, as README has it, in a new clone of what is committed
#     soak      scripts/soak.sh with its full counts
#     packages  wheel_check.sh, debian_packages.sh, image_check.sh, release_check.sh and torch_versions.sh
#
# A part that needs more core-seconds than its budget fails. DDPRUN_TEST_BUDGET=200 doubles the budgets,
# for a slower processor.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

parts=(demo checks asan release tsan fuzz tidy)
# At least 1.6 times the most that such a part has taken since 2026-11-29, nothing from ccache
# (docs/internals/benchmarks.md).
declare -A budget=([demo]=1150 [checks]=20 [asan]=1300 [release]=2400 [tsan]=400 [fuzz]=180 [tidy]=710)
level=default only="" skip="" jobs=$(nproc) list=no

usage() { sed -n '3,27s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while [ $# -gt 0 ]; do
  case $1 in
    --only=*|--skip=*|--jobs=*) flag=${1%%=*} value=${1#*=}; shift ;;
    --only|--skip|--jobs) flag=$1 value=${2:-}; shift; [ $# -eq 0 ] || shift ;;
    --ci|--nightly) level=${1#--}; shift; continue ;;
    --list) list=yes; shift; continue ;;
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
[ "$level" != nightly ] || parts+=(clone soak packages)
[ $list = no ] || { printf '%s\n' "${parts[@]}"; exit 0; }
for name in ${only//,/ } ${skip//,/ }; do
  [[ " ${parts[*]} " == *" $name "* ]] ||
    { echo "test: no part '$name'; there are: ${parts[*]}" >&2; exit 2; }
done
[ -n "$only" ] || [ "$level" != default ] || only=checks,release
werror=""  # only new build folders under --ci or --nightly get it (CMakeLists.txt)
[ "$level" = default ] || werror=ON
without_torch=no
[ "$level" != default ] || [ "$only" != checks,release ] || without_torch=yes
slow='|slow' later=nightly
if [ "$level" = nightly ]; then
  slow="" later=none
  export DDPRUN_NIGHTLY=1
  for name in "${!budget[@]}"; do budget[$name]=$((3 * budget[$name])); done  # each part does more at night
  # A run in a clone has taken up to 1,580. The soak takes four hours, which are 28,800 on two cores. Nobody has
  # measured the packages, so they get as much.
  budget+=([clone]=2600 [soak]=28800 [packages]=28800)
fi
[ $without_torch = no ] || later+='|torch'

passed=() failed=() flaky=() why=() figures=() not_run=()  # why: what failed in a part
closing=""  # ctest's summary of the release tests, else of the last ones
started=$SECONDS

is_wanted() {
  { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; } && [[ ",$skip," != *",$1,"* ]]
}

# Sets `used` to the core-seconds of this shell's ended children. It can't run in a subshell, which would count its own.
count_core_seconds() {
  times >build/test-times
  used=$(awk 'NR == 2 { split($1, user, /[ms]/); split($2, sys, /[ms]/)
                        printf "%d", 60 * (user[1] + sys[1]) + user[2] + sys[2] }' build/test-times)
}

# Runs `part_NAME`; keeps going after a failure, so that one run shows everything. A part that does nothing sets
# `result` itself.
declare -A ended=() built=()  # step → its exit status, its core-seconds
run_part() {
  local name=$1 begin=$SECONDS used cores limit result=passed
  is_wanted "$name" || return 0
  printf '\n=== %s\n' "$name"
  count_core_seconds
  cores=$used
  "part_$name" || result=FAILED
  count_core_seconds
  cores=$((used - cores + ${built[$name]:-0}))
  limit=$((budget[$name] * ${DDPRUN_TEST_BUDGET:-100} / 100))
  if [ $cores -gt $limit ]; then
    result=FAILED
    why+=("$name: $cores core-seconds, over its budget of $limit")
  fi
  figures+=("$(printf '%-8s %6d core-seconds of %5d, %5d s' "$name" "$cores" "$limit" $((SECONDS - begin)))")
  case $result in
    passed) passed+=("$name $((SECONDS - begin))s") ;;
    FAILED) failed+=("$name") ;;
  esac
  printf '=== %s: %s, %d core-seconds, %d s\n' "$name" "$result" "$cores" $((SECONDS - begin))
}

# Starts the work behind the tests, in its own session, which ends with this script. The session is not a
# child of this shell, so its core-seconds aren't counted with the tests. It reports them itself.
start_behind() {
  [ $# -gt 0 ] || return 0
  exec {behind}< <(DDPRUN_WERROR=$werror DDPRUN_TEST_LOGIC=$logic DDPRUN_TEST_LEVEL=$level exec setsid --fork scripts/test_behind.sh "$jobs" "$@")
  read -r -u "$behind" session
  trap 'kill -- "-$session" 2>/dev/null' EXIT
}

# Waits until step $1 has ended. Returns its exit status.
await() {
  local step status seconds cores
  while [ -z "${ended[$1]:-}" ]; do
    read -r -u "$behind" step status seconds cores || { why+=("$1: what goes on behind the tests was ended"); return 1; }
    ended[$step]=$status built[$step]=$cores
    printf 'test: %s behind the tests: %d core-seconds, %d s\n' "$step" "$cores" "$seconds"
  done
  return "${ended[$1]}"
}

# Prints the first line of log $1 that names an error, for the end of the run: a report may show only that.
first_error() {
  local line
  line=$(grep -m 1 -aiE '(error|killed|no space left|timed out)' "$1" | cut -c 1-400) && printf ': %s' "$line"
}

await_wheels() {
  if [ $without_torch = yes ] || await wheels; then return 0; fi
  cat build/test-wheels.log
  why+=("$1: the wheels could not be installed$(first_error build/test-wheels.log)")
  return 1
}

await_build() {
  if ! await "$1"; then
    tail -n 80 "build/test-$1.log"
    why+=("$1: the build failed$(first_error "build/test-$1.log")")
    return 1
  fi
  sed -n 's/^-- \(ddprun \|  \)/  \1/p' "build/test-$1.log"
  # The loaders and their tests aren't built then, which no skip shows.
  if [ "$level" != default ] && grep -q '^--   CUDA, NCCL   off' "build/test-$1.log"; then
    why+=("$1: built without CUDA and NCCL: there is no cuda_runtime_api.h or no nccl.h")
    result=FAILED  # the other tests run all the same
  fi
}

# Turns address randomisation off: ThreadSanitizer aborts if the kernel randomises more bits than it
# expects.
fixed_addresses=()
if setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi

failed_of() { sed 's/^[0-9]*://' "build/$1/Testing/Temporary/LastTestsFailed.log" 2>/dev/null; }
on_one_line() { tr '\n' ';'; }

# Fails if a test of build/$1 that must not be skipped was skipped in the results $2.
check_skips() {
  local said status=0
  said=$(scripts/check_skips.py "build/$1/$2" tests/allowed_skips.txt) || status=1
  echo "$said"
  [ $status -eq 0 ] || why+=("$1: a skip is not allowed: $(sed -n 's/^not allowed: //p' <<<"$said" | on_one_line)")
  return $status
}

# A test that fails beside others is tried once more, alone and with the seed of its first try. If it passes, it is
# reported as flaky, which is a bug until shown otherwise. More than one in a run fail the run.
# Tests wait half of the time, so twice as many run as there are cores, unless something compiles behind them.
run_ctest() {
  local preset=$1 log=build/test-ctest.log status skips=0 names name at_once=$((jobs + 1))
  [ "$level" != default ] || at_once=$((2 * jobs + 1))
  shift
  # The skips are read from the tests' output, so ctest must not cut it.
  local ctest=("${fixed_addresses[@]}" ctest --test-dir "build/$preset" --output-on-failure
               --no-tests=error --test-output-size-passed 10000000 --output-junit)
  "${ctest[@]}" test-results.xml -j $at_once "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  [ -n "$closing" ] && [ "$preset" != release ] || closing=$(grep '^[0-9]*% tests passed' "$log")
  check_skips "$preset" test-results.xml || skips=1
  [ "$status" -ne 0 ] || return $skips
  names=$(failed_of "$preset")
  printf '\ntest: once more, alone: %s\n' "$(on_one_line <<<"$names")"
  kill -STOP -- "-$session" 2>/dev/null
  "${ctest[@]}" second-results.xml -j 1 --rerun-failed
  status=$?
  kill -CONT -- "-$session" 2>/dev/null
  if [ $status -ne 0 ]; then
    why+=("$preset: failed twice: $(failed_of "$preset" | on_one_line)")
    return 1
  fi
  check_skips "$preset" second-results.xml || skips=1  # a test that fails and is skipped then has not passed
  while read -r name; do flaky+=("$preset: $name"); done <<<"$names"
  return $skips
}

# Runs the demo. The release part goes on with its build folder.
part_demo() {
  if [ -e build/release/CMakeCache.txt ]; then
    not_run+=("demo: build/release is there, so this clone isn't new")
    result="not run"
    return 0
  fi
  DDPRUN_WERROR=$werror scripts/demo.sh | tee build/test-demo.log || { why+=("demo: it failed"); return 1; }
  local accuracy
  accuracy=$(sed -n 's/^demo: trained .* test accuracy //p' build/test-demo.log)
  # 287 or 288 of the 297 images, however a processor rounds: with AVX-512, AVX2, neither, and MKL's compatible mode.
  if ! awk -v found="${accuracy:-0}" 'BEGIN { exit !(found >= 0.96) }'; then
    why+=("demo: test accuracy '$accuracy', not 0.96")
    return 1
  fi
  build/release/bin/ddprund --version || { why+=("demo: there is no ddprund"); return 1; }
  # Installs the demo's build, as README does.
  cmake --install build/release --prefix "$PWD/build/installed" >build/test-install.log &&
    build/installed/bin/ddprunctl --version || { why+=("demo: cmake --install failed: build/test-install.log"); return 1; }
  rm -rf build/installed build/release/install_manifest*.txt
}

part_checks() {
  local status=0
  scripts/check_arrows.py --self-test && scripts/check_arrows.py || status=1
  scripts/check_test_names.py --self-test && scripts/check_test_names.py || status=1
  scripts/check_skips.py --self-test && scripts/check_skips.py tests/allowed_skips.txt || status=1
  scripts/check_hidden_names.py || status=1
  scripts/check_english.py --self-test && scripts/check_english.py || status=1
  scripts/format.sh --check || status=1
  return $status
}
part_release() { await_wheels release && await_build release && run_ctest release -LE "$later"; }
part_asan() {
  await_wheels asan && await_build asan &&
    ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
    UBSAN_OPTIONS=print_stacktrace=1 run_ctest asan -LE "torch|gpu|once$slow"
}
part_tsan() {
  await_wheels tsan && await_build tsan &&
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 run_ctest tsan -LE 'torch|gpu|once'
}
part_fuzz() {
  await fuzz && cat build/test-fuzz.log && return 0
  tail -n 200 build/test-fuzz.log
  why+=("fuzz: $(head -c 2000 build/fuzz/found 2>/dev/null || echo 'the build failed')")
  return 1
}
part_tidy() {
  local status=0
  await_wheels tidy || return 1
  await tidy || status=1
  cat build/test-tidy.log
  return $status
}
# DDPRUN_NIGHTLY would give the clone's tests their large counts.
part_clone() {
  rm -rf build/clone
  git clone --quiet . build/clone && env -u DDPRUN_NIGHTLY build/clone/scripts/test.sh && rm -rf build/clone
}
part_soak() { scripts/soak.sh; }
part_packages() {
  local check status=0
  scripts/setup.sh release || { why+=("packages: the set-up failed"); status=1; }
  for check in wheel_check.sh "debian_packages.sh --check" image_check.sh release_check.sh torch_versions.sh; do
    # shellcheck disable=SC2086  # $check may have arguments
    scripts/$check || { why+=("packages: $check failed"); status=1; }
  done
  return $status
}

# Only the checks need no PyTorch. Its wheels are downloaded beside the builds that can start without
# them.
needs=(checks) behind_steps=()
for name in "${parts[@]}"; do
  if [[ $name =~ ^(demo|checks|clone|soak|packages)$ ]] || ! is_wanted "$name"; then continue; fi
  needs=(full --no-torch)
  [ ${#behind_steps[@]} -gt 0 ] || [ $without_torch = yes ] || behind_steps=(wheels)
  behind_steps+=("$name")
done
logic=ON
if [ "$level" != nightly ] && is_wanted asan; then logic=OFF; fi
mkdir -p build
run_part demo
if ! scripts/setup.sh "${needs[@]}"; then
  echo "test: the set-up failed; nothing was tested"
  exit 1
fi
start_behind "${behind_steps[@]}"
for part in "${parts[@]:1}"; do run_part "$part"; done

printf '\n'
printf 'test: %s\n' "${figures[@]}"
[ ${#not_run[@]} -eq 0 ] || printf 'test: not run: %s\n' "${not_run[@]}"
[ -z "$closing" ] || printf '\n%s\n' "$closing"
summary="${passed[*]:-none} ($((SECONDS - started)) s)"
if [ ${#flaky[@]} -gt 0 ]; then
  summary+="; flaky, passed at the second try only: $(printf '%s; ' "${flaky[@]}")"
  [ ${#flaky[@]} -eq 1 ] || failed+=("${#flaky[@]} flaky tests")
fi
if [ ${#failed[@]} -gt 0 ]; then
  [ ${#why[@]} -eq 0 ] || printf 'test: %s\n' "${why[@]}"
  echo "test: FAILED: ${failed[*]}; passed: $summary"
  exit 1
fi
echo "test: all passed: $summary"
