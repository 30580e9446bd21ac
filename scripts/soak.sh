#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The large numbers that CI has no time for, one after the other, each with an end: what was done, how
# often, how it went. About four hours; needs a release build (scripts/test.sh --only release).
#
#   scripts/soak.sh [--only NAME] [--scale PERCENT] [--write] [--list]
#     --scale 10   a tenth of each count
#     --write      keep what was done in docs/benchmarks.md's table, with machine and date
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

only="" scale=100 write=no
names=(restarts warm fuzz kills faults inplace quiet leaders gang-worlds journal-kills memory train worlds repeat)
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=${2:?--only needs a name}; shift 2 ;;
    --scale) scale=${2:?--scale needs a percentage}; shift 2 ;;
    --write) write=yes; shift ;;
    --list) printf '%s\n' "${names[@]}"; exit 0 ;;
    -h|--help) sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "soak: unknown argument '$1'" >&2; exit 2 ;;
  esac
done
export DDPRUN_BIN_DIR=$PWD/build/release/bin DDPRUN_SOURCE_DIR=$PWD
python=.venv/bin/python3
log=$(mktemp -d)
rows=() failed=0

count() { local n=$(($1 * scale / 100)); echo $((n > 0 ? n : 1)); }

# row NAME "what" LIMIT_SECONDS COMMAND…: runs the command and notes the outcome.
row() {
  local name=$1 what=$2 limit=$3 begin=$SECONDS status
  shift 3
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  local program
  for program in "$@"; do
    case $program in
      build/*) [ -x "$program" ] || { echo "soak: $name: no $program: build it with cmake -DDDPRUN_TEST_LOGIC=ON" >&2; exit 2; } ;;
    esac
  done
  echo "soak: $name: $what"
  timeout --kill-after=10 "$limit" "$@" >"$log/$name" 2>&1
  status=$?
  if [ $status -eq 0 ]; then
    rows+=("| $name | $what | every time | $((SECONDS - begin)) s |")
  else
    failed=$((failed + 1))
    rows+=("| $name | $what | **failed** (exit status $status) | $((SECONDS - begin)) s |")
    tail -n 40 "$log/$name"
  fi
}

n=$(count 100)
row restarts "a gloo job of 2 ranks survives $n restarts in a row" $((120 + 20 * n)) \
  "$python" -B tests/pytorch/restarts_test.py "$n"
n=$(count 1000)
row warm "a gloo job of 2 ranks is restarted warm $n times in a row: each result is right, no process or memory is left" \
  $((120 + 5 * n)) "$python" -B tests/pytorch/warm_restarts_test.py "$n"
n=$(count 480)
runs=$(count 10000000)
row fuzz "each fuzzer for $n s, $runs runs in all or more" $((n * 10 + 600)) scripts/fuzz.sh "$n" 0 "$runs"
n=$(count 10)
row kills "a rank killed at a random moment of a collective, $((200 * n)) times" 3600 \
  ctest --test-dir build/release --no-tests=error -R '200 times' --repeat until-fail:"$n"
n=$(count 1000)
row faults "kill -9 of a worker, warden, agent or ddprund of a job on 3 hosts at a random moment, $n times" $((120 + 3 * n)) \
  env DDPRUN_FAULT_KILLS="$n" "$python" -B tests/faults/random_kills_test.py
n=$(count 50)
row inplace "kill -9 of a rank of a job under --recovery=inplace at a random moment, $n times: right result, no hang" $((120 + 10 * n)) \
  env DDPRUN_FAULT_KILLS="$n" "$python" -B tests/faults/in_place_test.py RandomKills
n=$(count 60)
row quiet "a job is often quiet for $n min (compilation, checkpoints, a debugger): no hang is told" $((300 + 60 * n)) \
  "$python" -B tests/pytorch/quiet_hour_test.py "$n"
n=$(count 1000)
row leaders "kill -9 or a pause of a leader, a standby, a worker, warden or agent of a job on 3 hosts, $n times" \
  $((300 + 15 * n)) env DDPRUN_FAULT_KILLS="$n" "$python" -B tests/faults/ha_test.py
row gang-worlds "20,000 random worlds of the queue for standing agents" 3600 env DDPRUN_SOAK=1 build/release/bin/gangs_random_test
row journal-kills "ddprund killed at each write to its journal in a job that fails and is restarted, before it and half way through" \
  3600 env DDPRUN_KILL_STEP=1 "$python" -B tests/rendezvous/daemon/journal_kill_test.py
n=$(count 600)
row memory "jobs and keys come and go for $n s: ddprund's memory comes back to within 5 %, without and with a journal" \
  $((120 + 3 * n)) env DDPRUN_MEMORY_SECONDS="$n" "$python" -B tests/rendezvous/daemon/memory_test.py
n=$(count 3)
row train "train killed with -9 at 20 random moments ends bit for bit as undisturbed, with each kind of checkpoint, $n times" \
  $((300 + 400 * n)) env DDPRUN_NUM_KILLS=20 bash -c \
  "for ((i = 0; i < $n; ++i)); do $python -B tests/apps/train/random_kills_test.py || exit; done"
row worlds "1,000,000 random worlds against the membership machine's invariants" 3600 \
  env DDPRUN_SOAK=1 build/release/bin/membership_random_test
# One run takes 7 to 10 minutes.
n=$(count 2)
row repeat "all tests without LibTorch, $n times" $((1200 * n)) \
  ctest --test-dir build/release --no-tests=error -LE 'torch|gpu' --repeat until-fail:"$n" -j "$(nproc)"

printf '\n%s\n' '| row | what | result | time |' '|---|---|---|---|' "${rows[@]}"
if [ "$write" = yes ]; then printf '%s\n' "${rows[@]}" | python3 -B bench/keep_soak.py || exit; fi
echo "soak: ${#rows[@]} rows, $failed failed"
[ $failed -eq 0 ]
