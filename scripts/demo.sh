#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 to a trained model. Installs what is missing, builds ddprun's programs, and trains the digits
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
json_of_our_own="" downloads=""
finish() {
  local status=$?
  [ -z "$downloads" ] || kill "$downloads" 2>/dev/null || true
  rm -f "$json_of_our_own"
  [ $status -eq 0 ] || echo "demo: failed; the reason is above"
}
trap finish EXIT

begin=$(date +%s)
if [ ! -x build/release/bin/train ]; then
  echo "demo: three steps: install what is missing, build the programs in build/release, train"
  echo "demo: about 8 minutes on 2 cores; LibTorch is 500 MB to download, Debian's packages at most 300 MB"
fi
scripts/setup.sh minimal --no-torch

# Downloads LibTorch while everything that doesn't need it is compiled.
mkdir -p build
scripts/setup.sh minimal >build/setup-torch.log 2>&1 </dev/null &
downloads=$!
programs=(ddprun ddprund ddprunctl ddprun-agent ddprun_c)  # `cmake --install` needs all of these
fresh=()
if [ ! -f build/release/CMakeCache.txt ]; then
  # Builds no tests and benchmarks: scripts/test.sh turns them on. DDPRUN_BUILD_ONCE compiles many files as one.
  fresh=(-DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_BENCH=OFF -DDDPRUN_BUILD_ONCE=ON)
  cmake --preset release "${fresh[@]}" -DDDPRUN_WITH_TORCH=OFF >build/configure.log || { cat build/configure.log; exit 1; }
  scripts/build_progress.py build/release 0-40 "$begin" ddprund ddprunctl
  # LibTorch's headers keep one core busy for a minute; the launcher and the agent are compiled beside them.
  if kill -0 "$downloads" 2>/dev/null; then
    scripts/build_progress.py build/release 40-65 "$begin" "${programs[@]}"
  fi
  fresh=(-DDDPRUN_WITH_TORCH=AUTO)
fi
wait "$downloads" || { cat build/setup-torch.log; exit 1; }
downloads=""
grep -v 'nothing to install' build/setup-torch.log || true
cmake --preset release "${fresh[@]}" >build/configure.log || { cat build/configure.log; exit 1; }
scripts/build_progress.py build/release 40-100 "$begin" "${programs[@]}" train pages

# The summary goes into the user's --json file, else into a file of our own.
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
  json_of_our_own=$json
  summary=(--json "$json")
fi

command=(build/release/bin/ddprun --standalone --nproc_per_node=2 train)
echo "demo: ${command[*]}${*:+ $*}"
"${command[@]}" "${summary[@]}" "$@"
accuracy=$(python3 -c 'import json,sys; print("%.4f" % json.load(open(sys.argv[1]))["test_accuracy"])' "$json")
echo "demo: trained on the digits with 2 processes: test accuracy $accuracy"
