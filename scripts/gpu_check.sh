#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what needs a GPU, on a machine that has one or several. It runs the tests labelled gpu, also with several ranks
# on one GPU, and the findings of `ddprunctl doctor`. Training steps, optimisers and all-reduces run beside PyTorch's
# and bare NCCL. A rank stays away or dies. There are two ways:
#
#   scripts/gpu_check.sh [--torch DIR] [--no-setup] [PRESET] [STEPS]
#       builds first; installs what is missing for that (scripts/setup.sh gpu). Needs the CUDA
#       toolkit's headers; NCCL's may be PyTorch's. PRESET: release (default), dev, asan
#     --torch DIR   the `torch` folder of another CUDA PyTorch than .venv's, whose python3 must be the
#                   first in PATH. By itself where .venv has none and python3 has one
#     --no-setup    installs nothing: builds with what is here
#   scripts/gpu_check.sh --carried DIR [STEPS]
#       builds and installs nothing: DIR has what scripts/gpu_pack.sh has gathered on another
#       machine. Needs a driver and a python3 with PyTorch
#
#   STEPS: [--deadline S] [--jobs N] [--only REGEX] [SECTION…]; sections: look one two step host plain
#   stress, default all, 7 minutes. A line a step; $OUT (default .gpu/out) gets results.json and logs.
#
# Ends with one line. Status: 0 passed, 1 failed, 77 no GPU here (nothing was installed or built).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

preset=release torch_dir="" setup=yes carried="" steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --torch) torch_dir=${2:?--torch needs a folder}; shift ;;
    --torch=*) torch_dir=${1#*=} ;;
    --no-setup) setup=no ;;
    --carried) carried=${2:?--carried needs a folder}; shift ;;
    --carried=*) carried=${1#*=} ;;
    --deadline|--jobs|--only) steps+=("$1" "${2:?$1 needs a value}"); shift ;;
    --deadline=*|--jobs=*|--only=*|look|one|two|step|host|plain|stress) steps+=("$1") ;;
    release|dev|asan) preset=$1 ;;
    -h|--help) sed -n '3,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "gpu_check: unknown argument '$1' (--help)" >&2; exit 2 ;;
  esac
  shift
done

skip() { echo "gpu_check: SKIPPED: $1"; exit 77; }
give_up() { echo "gpu_check: FAILED: $1"; exit 1; }
command -v nvidia-smi >/dev/null || skip "no GPU: no NVIDIA driver on this machine (nvidia-smi not found)"
cards=$(timeout 60 nvidia-smi --query-gpu=index,name,memory.total,driver_version \
          --format=csv,noheader 2>&1) && [ -n "$cards" ] || skip "no GPU: nvidia-smi says: $cards"
printf 'gpu_check: %s GPU(s): index, name, memory, driver\n%s\n' "$(wc -l <<<"$cards")" "$cards"

# Finds the PyTorch: the programs run on its libraries, and its Python is the peer.
has_cuda_torch() { "$1" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null; }
folder_of_torch() { python3 -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))'; }
version_of_torch() { sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py"; }

if [ -n "$carried" ]; then
  bin=$(mktemp -d)
  trap 'rm -rf "$bin"' EXIT
  python3 -m tarfile -e "$carried/pack.tar.xz" "$bin" || give_up "$carried holds no pack (scripts/gpu_pack.sh makes one)"
  torch_dir=$(folder_of_torch 2>/dev/null) || give_up "python3 has no PyTorch"
  made_for=$(cat "$bin/torch_version") have=$(version_of_torch "$torch_dir")
  [ "$made_for" = "$have" ] || give_up "the pack is for PyTorch $made_for; python3 has $have"
  echo "gpu_check: $(cat "$bin/commit"), PyTorch $have, unpacked in $SECONDS s"
  python3 scripts/gpu_steps.py "$bin/bin" "${steps[@]}"
  exit
fi

python=.venv/bin/python3
if [ -z "$torch_dir" ] && ! has_cuda_torch $python && has_cuda_torch python3; then
  torch_dir=$(folder_of_torch)
fi
if [ -n "$torch_dir" ]; then
  [ -f "$torch_dir/lib/libtorch_cpu.so" ] || give_up "--torch $torch_dir: there is no lib/libtorch_cpu.so"
  python=python3
  echo "gpu_check: PyTorch of $torch_dir"
fi
if [ $setup = yes ]; then
  # Goes on if packages are missing, because the installed ones may be enough. If they aren't, the build fails.
  scripts/setup.sh gpu ${torch_dir:+--no-torch} || echo "gpu_check: the set-up failed; goes on with what is here"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
build() {
  cmake --preset "$preset" -DDDPRUN_WITH_CUDA=ON -DDDPRUN_BUILD_TESTS=ON -DDDPRUN_BUILD_BENCH=ON \
    -U DDPRUN_TORCH_DIR "-DDDPRUN_TORCH_ROOT=$torch_dir" && cmake --build "build/$preset" --target gpu_programs
}
if ! build >"$log" 2>&1; then
  tail -40 "$log"
  give_up "the build (packages: scripts/setup.sh gpu; headers: the CUDA toolkit)"
fi
grep -E -- '--   (CUDA|NCCL|LibTorch)' "$log"
echo "gpu_check: built in $SECONDS s"
if [ ! -x "build/$preset/bin/gpu_worker" ]; then
  [ "$preset" = asan ] || give_up "nothing of LibTorch: $(sed -n 's/^--   LibTorch *off: //p' "$log")"
  steps+=(--without-torch)
elif ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
  give_up "LibTorch finds no GPU here (a CPU wheel? an older driver?)"
fi
"$python" scripts/gpu_steps.py "build/$preset/bin" "${steps[@]}"
