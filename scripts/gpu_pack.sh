#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what scripts/gpu_check.sh runs, here, where no GPU is needed, and gathers it into .gpu/pack.tar.xz. That is for
# a machine with a driver, Python and PyTorch, maybe without a compiler and a network. The command there is
# scripts/gpu_check.sh --carried .gpu
#
#   scripts/gpu_pack.sh --torch DIR   DIR: the `torch` folder of the wheel that the other machine has;
#                                     unpacked is enough. Headers of CUDA and NCCL have to be here
#
# The build folder is build/gpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() { echo "gpu_pack: $1" >&2; exit 2; }
torch_dir=""
while [ $# -gt 0 ]; do
  case $1 in
    --torch) torch_dir=${2:-}; shift ;;
    --torch=*) torch_dir=${1#*=} ;;
    -h|--help) sed -n '3,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) refuse "unknown argument '$1' (--help)" ;;
  esac
  shift || true
done
[ -n "$torch_dir" ] || refuse "--torch DIR is needed: the \`torch\` folder of the wheel that the GPU machine has (--help)"
[ -f "$torch_dir/version.py" ] || refuse "--torch $torch_dir: there is no version.py, so it is no \`torch\` folder of a wheel"
version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch_dir/version.py")

# Programs look for libraries, and for their libraries in turn, in ../lib beside them. Only DT_RPATH does both;
# DT_RUNPATH doesn't.
# shellcheck disable=SC2016  # the dynamic linker expands $ORIGIN
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DDDPRUN_BUILD_ONCE=ON -DDDPRUN_WITH_CUDA=ON \
  -DDDPRUN_BUILD_TESTS=ON -DDDPRUN_BUILD_BENCH=ON "-DDDPRUN_TORCH_ROOT=$(realpath "$torch_dir")" -U DDPRUN_TORCH_DIR \
  '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags | grep -E -- '--   (CUDA|NCCL|LibTorch)'
cmake --build build/gpu --target gpu_programs

pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
mkdir "$pack/bin" "$pack/lib"
while read -r program; do strip -g -o "$pack/bin/$program" "build/gpu/bin/$program"; done <build/gpu/gpu_programs
cp build/gpu/bin/takes_test_gpu "$pack/bin/"  # so the pack's programs take DDPRUN_TEST_GPU
# Packs all libraries but those of glibc, GCC, NVIDIA and PyTorch, which the other machine has.
{ ldd build/gpu/bin/* 2>/dev/null || true; } | awk '/=> \//{print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|libgcc_s|libstdc\+\+|libgomp)\.so|/lib(torch|c10|cud|cu|nv|nccl)[^/]*$' |
  xargs -r cp -Lt "$pack/lib"
# Tries the pack here, because the other machine may have no compiler to repair it.
"$pack/bin/ddprun" --standalone --nproc-per-node=1 true ||
  { echo "gpu_pack: the packed ddprun starts no worker here (above)" >&2; exit 1; }
echo "$version" >"$pack/torch_version"
git describe --always --dirty --abbrev=8 >"$pack/commit" 2>/dev/null || echo "no commit" >"$pack/commit"
mkdir -p .gpu
tar -C "$pack" -c . | xz -T0 -6 >.gpu/pack.tar.xz
echo "gpu_pack: $(du -h .gpu/pack.tar.xz | cut -f1) for PyTorch $version: .gpu/pack.tar.xz"
