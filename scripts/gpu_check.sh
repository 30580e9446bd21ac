#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ddprun on a machine with NVIDIA GPUs and runs what needs one: the tests labelled gpu, with
# several ranks on one GPU too; what `ddprunctl doctor` finds out about the GPUs; NCCL's bus
# bandwidth; a training step beside PyTorch's. Installs what is missing (scripts/setup.sh gpu); a few
# minutes on 16 cores once that is there.
#
#   scripts/gpu_check.sh [--torch DIR] [--no-setup] [PRESET]     PRESET: release (default), dev, asan
#     --torch DIR   the `torch` folder of another CUDA PyTorch than .venv's, whose python3 must be the
#                   first in PATH. By itself where .venv has none and python3 has one
#     --no-setup    installs nothing: builds with what is here
#
# Needs the CUDA toolkit's headers; NCCL's may be those that come with PyTorch. Ends with one line.
# Status: 0 passed, 1 failed, 77 no GPU here (nothing was installed or built).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

preset=release torch_dir="" setup=yes
while [ $# -gt 0 ]; do
  case $1 in
    --torch) torch_dir=${2:?--torch needs a folder}; shift ;;
    --torch=*) torch_dir=${1#*=} ;;
    --no-setup) setup=no ;;
    release|dev|asan) preset=$1 ;;
    -h|--help) sed -n '3,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "gpu_check: unknown argument '$1' (--help)" >&2; exit 2 ;;
  esac
  shift
done

skip() { echo "gpu_check: SKIPPED: $1"; exit 77; }
give_up() { echo "gpu_check: FAILED: $1"; exit 1; }
command -v nvidia-smi >/dev/null || skip "no NVIDIA driver on this machine (nvidia-smi not found)"
cards=$(timeout 60 nvidia-smi --query-gpu=index,name,memory.total,driver_version \
          --format=csv,noheader 2>&1) && [ -n "$cards" ] || skip "nvidia-smi finds no GPU: $cards"
num_gpus=$(wc -l <<<"$cards")
printf 'gpu_check: %s GPU(s): index, name, memory, driver\n%s\n' "$num_gpus" "$cards"

# Which PyTorch: its libraries are what the programs run on, its Python is the peer.
has_cuda_torch() { "$1" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null; }
folder_of_torch() { python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))'; }
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
  # What is here may do, although a package is called missing: then the build says so.
  scripts/setup.sh gpu ${torch_dir:+--no-torch} || echo "gpu_check: the set-up failed; goes on with what is here"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
has_target() { grep -q "bin/$1:\| bin/$1 " "build/$preset/build.ninja"; }
build() {
  cmake --preset "$preset" -DDDPRUN_WITH_CUDA=ON -DDDPRUN_BUILD_TESTS=ON -DDDPRUN_BUILD_BENCH=ON \
    -U DDPRUN_TORCH_DIR "-DDDPRUN_TORCH_ROOT=$torch_dir" || return 1
  local target targets=(ddprun ddprunctl ddprun-gpus nccl_communicator_gpu_test nccl_pair_worker nccl_bandwidth)
  for target in step_bench gpu_worker; do
    if has_target $target; then targets+=($target); fi
  done
  cmake --build "build/$preset" --target "${targets[@]}"
}
if ! build >"$log" 2>&1; then
  tail -40 "$log"
  give_up "the build (packages: scripts/setup.sh gpu; headers: the CUDA toolkit)"
fi
grep -E -- '--   (CUDA|NCCL|LibTorch)' "$log"
no_torch=$(sed -n 's/^--   LibTorch *off: //p' "$log")
bin=build/$preset/bin
launch() { timeout 180 "$bin/ddprun" --standalone "--nproc-per-node=$1" --log-line-prefix-template= "${@:2}"; }
version=$(timeout 60 "$bin/nccl_bandwidth" --version) ||
  give_up "NCCL or the CUDA runtime can't be loaded: $version"
echo "gpu_check: $version; built in $SECONDS s"

failed=()
# run NAME COMMAND…: its output, and whether it passed. What is skipped here has failed, but for
# tests of more ranks than there are GPUs.
run() {
  local name=$1 status begin=$SECONDS
  shift
  echo "=== $name"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || failed+=("$name (status $status)")
  if grep "SKIPPED: " "$log" | grep -qv "more ranks than GPUs"; then failed+=("$name (skipped)"); fi
  echo "=== $((SECONDS - begin)) s"
}

shared_by_host_id() {
  (export CUDA_VISIBLE_DEVICES=0 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
   launch 2 "$bin/nccl_bandwidth" --host-id-each --max-mib 4 && launch 2 "$bin/nccl_pair_worker")
}

# One rank per GPU, as threads of one process.
run "one rank per GPU" timeout 180 "$bin/nccl_communicator_gpu_test"

# Several ranks on one GPU: correctness only, never a measure of speed.
number=$(sed -n 's/.*NCCL [^(]*(\([0-9]*\)).*/\1/p' <<<"$version")
if [ "${number:-0}" -ge 23003 ]; then
  run "4 ranks share GPU 0 (NCCL_MULTI_RANK_GPU_ENABLE)" \
    env CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=4 \
    timeout 180 "$bin/nccl_communicator_gpu_test"
fi
run "2 ranks share GPU 0 (a host id each): sums, streams, debug mode" shared_by_host_id

# What the driver and NVML say of this machine is its own affair (a warning is no failure here); that
# each check finds it out is ours.
doctor_looks() {
  local page
  page=$(timeout 90 "$bin/ddprunctl" doctor --only=gpu,nccl --timeout=30 --json)
  [ -n "$page" ] || { echo "no answer (status $?)"; return 1; }
  "$python" - "$num_gpus" "$page" <<'EOF'
import json, sys
found = {each["check"]: each for each in json.loads(sys.argv[2])["findings"]}
wrong = [name for name, each in found.items()
         if each["verdict"] == "unknown" or "can't be used" in each["seen"]
         or (name == "gpu_driver" and each["verdict"] == "skipped")]
if not found["gpu_count"]["seen"].startswith(f"{sys.argv[1]} answer"):
    wrong.append("gpu_count")
for name, each in found.items():
    print(f"{each['verdict']:8}{name:20}{each['seen']}")
sys.exit(f"not found out: {', '.join(wrong)}" if wrong else 0)
EOF
}
run "ddprunctl doctor: what the driver and NVML say" doctor_looks

if [ "$num_gpus" -gt 1 ]; then
  run "bus bandwidth, one rank per GPU" launch "$num_gpus" "$bin/nccl_bandwidth"
else
  run "all-reduce with one rank (one GPU: there is no bus)" launch 1 "$bin/nccl_bandwidth"
fi

# A training step beside PyTorch's, in turn; the fastest of three medians each.
ddp_step() {
  local ours=() theirs=()
  for _ in 1 2 3; do
    ours+=("$(launch "$num_gpus" "$bin/step_bench" resnet18 30 none cuda)") || return 1
    theirs+=("$(timeout 180 "$python" -m torch.distributed.run --standalone "--nproc-per-node=$num_gpus" \
      bench/sdk/step_ddp.py resnet18 30 none cuda)") || return 1
  done
  "$python" - "$num_gpus" "${ours[@]}" "${theirs[@]}" <<'EOF'
import json, sys
lines = [[line for line in text.splitlines() if line.startswith("{")][-1] for text in sys.argv[2:]]
medians = [json.loads(line)["step_ms"] for line in lines]
ours, theirs = min(medians[:3]), min(medians[3:])
print(f"ResNet-18, 16 images per rank, {sys.argv[1]} GPU(s): {ours:.2f} ms a step, PyTorch DDP {theirs:.2f} ms: "
      f"{ours / theirs:.3f} x (wanted: at most 1.0)")
EOF
}
if [ ! -x "$bin/gpu_worker" ]; then
  echo "gpu_check: nothing of LibTorch: $no_torch"
  [ "$preset" = asan ] || failed+=("LibTorch (not found)")
elif ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
  failed+=("LibTorch (it finds no GPU here: a CPU wheel? an older driver?)")
else
  run "LibTorch: the loader, streams, DDP beside the CPU" launch "$num_gpus" "$bin/gpu_worker"
  run "DDP step, one rank per GPU" ddp_step
fi

if [ ${#failed[@]} -gt 0 ]; then
  printf -v names '; %s' "${failed[@]}"
  give_up "${names:2} ($SECONDS s)"
fi
echo "gpu_check: passed on $num_gpus GPU(s) in $SECONDS s"
