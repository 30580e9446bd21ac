#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that need PyTorch with other versions of it, each out of PyPI into a virtual environment that is removed afterwards.
# Prints a row of a table for each version: docs/torchrun.md has them. About 10 minutes and up to 3 GB to fetch for a version.
#
#   scripts/torch_versions.sh [VERSION[/PYTHON]…] [deepspeed]
#     2.15.0/3.13       with python3.13 of PATH, not python3
#     2.8.0/bullseye    in a root of that Debian, with its Python and the wheel of scripts/wheel.sh; needs root and setup.sh release
#     deepspeed         also PyPI's DeepSpeed, beside the last of these versions
#     default: 2.8.0/bullseye 2.15.0/trixie 2.4.1 2.6.0 2.8.0 2.11.0 2.15.0 deepspeed
#
# Needs a release build (scripts/test.sh --only release), or its folder in DDPRUN_BIN_DIR. Output of tests: build/torch_versions/*.log.
# Roots are kept in build/wheel/roots.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

case ${1:-} in
  -h|--help) sed -n '3,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- 2.8.0/bullseye 2.15.0/trixie 2.4.1 2.6.0 2.8.0 2.11.0 2.15.0 deepspeed
[ "$*" != deepspeed ] || set -- 2.15.0 deepspeed
with_deepspeed=no
if [ "${*: -1}" = deepspeed ]; then with_deepspeed=yes; set -- "${@:1:$#-1}"; fi
export DDPRUN_BIN_DIR=${DDPRUN_BIN_DIR:-$PWD/build/release/bin} DDPRUN_SOURCE_DIR=$PWD PYTHONDONTWRITEBYTECODE=1
for program in ddprun ddprund; do
  [ -x "$DDPRUN_BIN_DIR/$program" ] || { echo "torch_versions: no $DDPRUN_BIN_DIR/$program: build it first" >&2; exit 1; }
done
folder=$PWD/build/torch_versions
venv=$folder/venv
mkdir -p "$folder"
export TORCH_EXTENSIONS_DIR=$folder/extensions  # for DeepSpeed's library, which would be put below the home folder
trap 'rm -rf "$venv" "$TORCH_EXTENSIONS_DIR"' EXIT
failed=0

# Installs with pip, also from source, because DeepSpeed has no wheels.
pip_install() {
  timeout 1800 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --only-binary :all: \
    --no-binary deepspeed --no-deps "$@"
}

# Prints the packages that $1 needs and this environment lacks. Leaves out Triton, because no test compiles a model.
# NVIDIA's wheels are needed, because PyTorch's libraries are linked with them.
missing() {
  "$venv/bin/python" - "$1" <<'PYTHON'
import importlib.metadata as metadata, sys
from pip._vendor.packaging.requirements import Requirement
seen = set()
def walk(name, extras):
    for text in metadata.requires(name) or []:
        need = Requirement(text)
        wanted = not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})
        if need.name == "triton" or not wanted or (need.name, str(need.extras)) in seen:
            continue
        seen.add((need.name, str(need.extras)))
        try:
            metadata.version(need.name)
        except metadata.PackageNotFoundError:
            print(need.name + str(need.specifier))
        else:
            walk(need.name, need.extras)
walk(sys.argv[1], set())
PYTHON
}

# Installs package $1 and all its dependencies.
add() {
  local needs round
  pip_install "${@:2}" "$1" || return
  for round in 1 2 3 4 5; do
    needs=$(missing "${1%%=*}") || return
    [ -n "$needs" ] || return 0
    pip_install -r <(echo "$needs") || return
  done
  echo "still missing after $round rounds: $needs"
  return 1
}

install() {
  rm -rf "$venv"
  "$2" -m venv "$venv" && pip_install numpy && add "torch==$1" || return
  # PyTorch's torchrun imports it before Python 3.10, and PyTorch's wheel doesn't ask for it.
  "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || add importlib_metadata
}

# Installs DeepSpeed. Its setup.py imports the packages that its metadata will require.
install_deepspeed() {
  pip_install setuptools wheel ninja py-cpuinfo einops hjson msgpack psutil packaging pydantic tqdm &&
    add accelerate && DS_BUILD_OPS=0 DS_ACCELERATOR=cpu add deepspeed --no-build-isolation
}

# Sets `outcome` to the reason in log $1 why a package was not installed. It is no failure if PyPI has none for this
# Python.
why_not() {
  local why
  if why=$(grep -m 1 '^ERROR: No matching' "$1"); then
    outcome="skipped (${why#ERROR: })"
  else
    outcome="failed ($(tail -n 1 "$1"))"
    failed=1
  fi
}

# in_root VERSION RELEASE: prints this script's row for the version, in a root of that release of Debian.
in_root() {
  local root=$PWD/build/wheel/roots/$2-torch
  source scripts/roots.sh
  mkdir -p "${root%/*}"
  scripts/wheel.sh >&2 || return
  # elfutils brings the library for native stacks.
  make_root "$2/$(dpkg --print-architecture)" "$root" ca-certificates,elfutils,iproute2,python3,python3-pip,python3-venv >&2 || return
  # The root becomes /, because a test's hosts have mounts of their own: in those a chroot is forgotten.
  unshare --mount --propagation private bash -euc '
    version=$1 source=$PWD wheel=$(ls -t dist/ddprun-*manylinux*"_$(uname -m).whl" | head -1)
    mount --bind "$2" "$2"
    cd "$2"
    cp -L /etc/resolv.conf etc/resolv.conf
    cp -L /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/ca-certificates.crt
    grep -qsw "$(hostname)" etc/hosts || echo "127.0.0.1 localhost $(hostname)" >>etc/hosts  # as machines have it
    mount -t proc proc proc
    mount --rbind /dev dev
    mount --rbind /sys sys
    mount -t tmpfs tmp tmp
    mkdir -p source
    mount --bind "$source" source
    pivot_root . mnt
    umount --lazy /mnt
    cd /source
    python3 -m venv /tmp/wheel
    /tmp/wheel/bin/pip install --quiet --no-index "$wheel"
    exec env LC_ALL=C.UTF-8 DDPRUN_BIN_DIR=/tmp/wheel/bin scripts/torch_versions.sh "$version"
  ' bash "$1" "$root" | grep "^| $1 | "
}

# try NAME SCRIPT ARGUMENT…: runs the script and sets `outcome`.
try() {
  local name=$1 log status
  shift
  log=$folder/$version-python$python_version-${name// /-}.log
  timeout --kill-after=30 900 "$venv/bin/python" -B "$@" >>"$log" 2>&1
  status=$?
  case $status in
    0) outcome=passed ;;
    77) outcome="skipped ($(sed -n 's/.*SKIPPED: //p' "$log" | tail -n 1))" ;;
    *) outcome=failed; failed=1
       printf '\ntorch_versions: %s of %s, exit code %d; the end of %s:\n' "$name" "$version" $status "${log#"$PWD"/}" >&2
       tail -n 30 "$log" >&2 ;;
  esac
}

rows=("| PyTorch | Python | store | environment | jobs | DDP with restart | lost nodes |" "|---|---|---|---|---|---|---|")
for each in "$@"; do
  version=${each%/*} python=python3
  if [[ $each == */[a-z]* ]]; then
    row=$(in_root "$version" "${each#*/}") || failed=1
    rows+=("${row:-| $version | ${each#*/} | failed | | | | |}")
    continue
  fi
  [ "$version" = "$each" ] || python=python${each#*/}
  log=$folder/$version-install.log
  echo "torch_versions: PyTorch $version" >&2
  if ! install "$version" "$python" >"$log" 2>&1; then
    why_not "$log"
    rows+=("| $version | $python | $outcome | | | | |")
    continue
  fi
  python_version=$("$venv/bin/python" -c 'import platform; print(platform.python_version())')
  rm -f "$folder/$version-python$python_version"-*.log
  row="| $version | $python_version |"
  try store tests/rendezvous/store/torch_client_test.py "$DDPRUN_BIN_DIR/ddprund"
  [ "$outcome" != passed ] || try store tests/rendezvous/store/differential_test.py "$DDPRUN_BIN_DIR/ddprund" 1 2000
  row+=" $outcome |"
  for test in environment/environment jobs/single_node "DDP with restart/restarts" "lost nodes/elastic"; do
    try "${test%/*}" "tests/pytorch/${test#*/}_test.py"
    row+=" $outcome |"
  done
  rows+=("$row")
  echo "$row" >&2
done
if [ $with_deepspeed = yes ]; then
  log=$folder/deepspeed-install.log
  echo "torch_versions: DeepSpeed" >&2
  if ! [ -x "$venv/bin/python" ] || ! install_deepspeed >"$log" 2>&1; then
    why_not "$log"
  elif ! "$venv/bin/python" -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null; then
    outcome="failed (no Python.h, with which it compiles its library: scripts/setup.sh release)" failed=1
  else
    try DeepSpeed tests/pytorch/deepspeed_test.py
  fi
  name=$("$venv/bin/python" -c 'import importlib.metadata; print(importlib.metadata.version("deepspeed"))' 2>/dev/null)
  rows+=("" "DeepSpeed ${name:-} with PyTorch $version: $outcome")
fi
printf '\n%s\n' "$(date -u +%F)"
printf '%s\n' "${rows[@]}"
exit $failed
