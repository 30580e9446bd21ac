#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 to a trained model: installs what is missing, builds, and trains the digits
# that this repository carries with two processes. Arguments go to `train` (try --epochs=2).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for argument in "$@"; do
  case $argument in
    -h|--help)
      sed -n '3,4s/^# \{0,1\}//p' "scripts/${BASH_SOURCE[0]##*/}"
      echo "The flags of train: docs/train.md, or build/release/bin/train --help once it is built."
      exit 0 ;;
  esac
done
trap '[ $? -eq 0 ] || echo "demo: failed; the reason is above"' EXIT

scripts/setup.sh minimal

if [ ! -f build/release/CMakeCache.txt ]; then
  # No tests, no benchmarks: the programs only. scripts/test.sh turns the rest on. Several files at a
  # time take about half of the time.
  cmake --preset release -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_BENCH=OFF -DDDPRUN_BUILD_ONCE=ON
else
  cmake --preset release >/dev/null
fi
echo "demo: building ddprun and train (a few minutes the first time)"
cmake --build build/release --target ddprun train

# The summary goes where the user wants it, else into a file of our own.
json=
previous=
for argument in "$@"; do
  case $argument in --json=*) json=${argument#--json=} ;; esac
  [ "$previous" != --json ] || json=$argument
  previous=$argument
done
summary=()
if [ -z "$json" ]; then
  json=$(mktemp)
  trap 'status=$?; rm -f "$json"; [ $status -eq 0 ] || echo "demo: failed; the reason is above"' EXIT
  summary=(--json "$json")
fi

command=(build/release/bin/ddprun --standalone --nproc_per_node=2 train)
echo "demo: ${command[*]}${*:+ $*}"
"${command[@]}" "${summary[@]}" "$@"
accuracy=$(python3 -c 'import json,sys; print("%.4f" % json.load(open(sys.argv[1]))["test_accuracy"])' "$json")
echo "demo: trained on the digits with 2 processes: test accuracy $accuracy"
