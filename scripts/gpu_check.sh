#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ddprun on a machine with NVIDIA GPUs and runs every test labelled gpu, the nccl communicator
# with several ranks on one GPU included; prints the card, the versions and NCCL's bus bandwidth.
#
#   scripts/gpu_check.sh [PRESET]       PRESET: dev (default), release, asan
#
# Ends with one line. Status: 0 passed, 1 failed, 77 no GPU here (nothing was built).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
preset=${1:-dev}

skip() { echo "gpu_check: SKIPPED: $1"; exit 77; }
command -v nvidia-smi >/dev/null || skip "no NVIDIA driver on this machine (nvidia-smi not found)"
cards=$(timeout 60 nvidia-smi --query-gpu=index,name,memory.total,driver_version \
          --format=csv,noheader 2>&1) && [ -n "$cards" ] || skip "nvidia-smi finds no GPU: $cards"
num_gpus=$(wc -l <<<"$cards")
printf 'gpu_check: %s GPU(s): index, name, memory, driver\n%s\n' "$num_gpus" "$cards"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
build() {
  cmake --preset "$preset" -DDDPRUN_WITH_CUDA=ON -DDDPRUN_BUILD_TESTS=ON &&
    cmake --build "build/$preset" --target nccl_communicator_gpu_test nccl_bandwidth ddprun &&
    { ! grep -q "bin/step_bench" "build/$preset/build.ninja" || cmake --build "build/$preset" --target step_bench; }
}
if ! build >"$log" 2>&1; then
  tail -40 "$log"
  echo "gpu_check: FAILED: the build (packages: scripts/setup.sh; headers: the CUDA toolkit with NCCL)"
  exit 1
fi
grep -E -- '--   (CUDA|NCCL)' "$log"
test_program=build/$preset/bin/nccl_communicator_gpu_test
bandwidth=build/$preset/bin/nccl_bandwidth
launch() { timeout 600 "build/$preset/bin/ddprun" --standalone --no-python "--nproc-per-node=$1" "$bandwidth" "${@:2}"; }
version=$(timeout 60 "$bandwidth" --version) ||
  { echo "gpu_check: FAILED: NCCL or the CUDA runtime can't be loaded: $version"; exit 1; }
echo "gpu_check: $version"

failed=()
run() {  # run NAME COMMAND…: its output, and whether it passed
  local name=$1
  shift
  echo "=== $name"
  "$@" || failed+=("$name (status $?)")
}

shared_by_host_id() {
  (export CUDA_VISIBLE_DEVICES=0 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
   launch 2 --host-id-each --max-mib 4)
}

# One rank per GPU, as threads of one process.
run "one rank per GPU" timeout 600 "$test_program"

# Several ranks on one GPU: correctness only, never a measure of speed.
number=$(sed -n 's/.*NCCL [^(]*(\([0-9]*\)).*/\1/p' <<<"$version")
if [ "${number:-0}" -ge 23003 ]; then
  run "4 ranks share GPU 0 (NCCL_MULTI_RANK_GPU_ENABLE)" \
    env CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=4 \
    timeout 600 "$test_program"
else
  run "2 ranks share GPU 0 (a host id each)" \
    shared_by_host_id
fi

if [ "$num_gpus" -gt 1 ]; then
  run "bus bandwidth, one rank per GPU" launch "$num_gpus"
else
  run "all-reduce with one rank (one GPU: there is no bus)" launch 1
fi

# A training step beside PyTorch's, in turn; the fastest of three medians each.
ddp_step() {
  local python=.venv/bin/python3 step=build/$preset/bin/step_bench ours=() theirs=()
  for _ in 1 2 3; do
    ours+=("$(timeout 300 "build/$preset/bin/ddprun" --standalone "--nproc-per-node=$num_gpus" \
      --log-line-prefix-template= "$step" resnet18 30 none cuda)") || return 1
    theirs+=("$(timeout 300 $python -m torch.distributed.run --standalone "--nproc-per-node=$num_gpus" \
      bench/sdk/step_ddp.py resnet18 30 none cuda)") || return 1
  done
  $python - "$num_gpus" "${ours[@]}" "${theirs[@]}" <<'EOF'
import json, sys
medians = [json.loads(line)["step_ms"] for line in sys.argv[2:]]
ours, theirs = min(medians[:3]), min(medians[3:])
print(f"ResNet-18, 16 images per rank, {sys.argv[1]} GPU(s): {ours:.2f} ms a step, PyTorch DDP {theirs:.2f} ms: "
      f"{ours / theirs:.3f} x (wanted: at most 1.0)")
EOF
}
if [ ! -x "build/$preset/bin/step_bench" ]; then
  echo "gpu_check: no DDP step: no LibTorch (scripts/setup.sh minimal)"
elif ! .venv/bin/python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "gpu_check: no DDP step: the LibTorch here finds no GPU (a CPU wheel?)"
else
  run "DDP step, one rank per GPU" ddp_step
fi

if [ ${#failed[@]} -gt 0 ]; then
  echo "gpu_check: FAILED: ${failed[*]}"
  exit 1
fi
echo "gpu_check: passed on $num_gpus GPU(s)"
