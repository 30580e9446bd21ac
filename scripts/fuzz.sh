#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzzers beside AddressSanitizer's tests (build/asan) and runs each for some seconds. It
# begins with the corpus that the tree keeps, and the inputs that earlier runs added to it in
# build/fuzz/corpus. `scripts/fuzz.sh [SECONDS [SEED [RUNS]]]` (20, 0: another one each time, 0).
# Fails when one finds something, and leaves the input that does it in build/fuzz; or when all
# together made fewer runs than RUNS.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
seed=${2:-0}
least_runs=${3:-0}

command -v clang++ >/dev/null ||
  { echo "fuzz.sh: clang++ is needed (apt-get install clang)" >&2; exit 1; }
mkdir -p build/fuzz
cmake --preset asan -DDDPRUN_BUILD_ONCE=ON -DDDPRUN_BUILD_BENCH=OFF >build/fuzz.log 2>&1 ||
  { cat build/fuzz.log >&2; exit 1; }
cmake --build build/asan --target fuzzers
rm -f build/fuzz/found build/fuzz/*_fuzz-*

run_one() {
  local name kept found what
  name=$(basename "$1")
  kept=tests/fuzz/corpus/$name
  found=build/fuzz/corpus/$name
  mkdir -p "$found" "$kept"
  # An input has a minute, because a second of CPU may take long beside tests or on a busy machine.
  timeout $((seconds + 120)) "$1" -max_total_time="$seconds" -seed="$seed" \
    -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" "$found" "$kept" \
    >"build/fuzz/$name.log" 2>&1 || {
    {
      echo "fuzz.sh: $name found something:"
      tail -40 "build/fuzz/$name.log"
      # Prints the input, because the log may be all that is left of the machine.
      for input in build/fuzz/"$name"-*; do
        [ -f "$input" ] && [ "$(stat -c %s "$input")" -le 4096 ] || continue
        printf '%s, in base64: %s\n' "${input##*/}" "$(base64 -w 0 "$input")"
      done
    } >&2
    what=$(grep -m 1 -E 'what\(\):|internal error|ERROR:|runtime error:|SUMMARY' "build/fuzz/$name.log")
    echo "$name: ${what:-see its log}" >>build/fuzz/found
    return 1
  }
  echo "fuzz.sh: $name: $(runs_in "build/fuzz/$name.log") runs"
}
runs_in() { sed -n 's/^stat::number_of_executed_units: *//p' "$1"; }
export -f run_one runs_in
export seconds seed

# Runs one fuzzer on each core. xargs ends with 123 if one of them has found something.
printf '%s\0' build/asan/bin/*_fuzz | xargs -0 -n 1 -P "$(nproc)" bash -c 'run_one "$0"' || exit 1
runs=0
for program in build/asan/bin/*_fuzz; do
  runs=$((runs + $(runs_in "build/fuzz/$(basename "$program").log")))
done
echo "fuzz.sh: nothing found in $seconds s each, $runs runs in all"
if [ "$runs" -lt "$least_runs" ]; then
  echo "fuzz.sh: $least_runs runs were asked for" >&2
  exit 1
fi
