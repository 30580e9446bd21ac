#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian packages of each RELEASE, in dist/. Those of the release of Debian here are built here, others in a
# root that debootstrap makes.
#
#   scripts/debian_packages.sh [--check] [RELEASE…]     default: bookworm trixie
#     --check   then tries them in a clean root of their release (tests/project/packages_test.py)
#
# DEBEMAIL and DEBFULLNAME are the maintainer. Another release and --check need root. Roots are kept in build/debian.
# scripts/setup.sh release installs what it needs. The same commit makes the same bytes while Debian's compiler and libraries
# are the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

check=no
case ${1:-} in
  -h|--help) sed -n '3,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --check) check=yes; shift ;;
esac
[ $# -gt 0 ] || set -- bookworm trixie
here=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH DEBIAN_FRONTEND=noninteractive CCACHE_DISABLE=1  # it changes the names of sources in the programs

make_packages() {  # RELEASE, which must be this machine's
  local build=build/package-$1 log=$PWD/build/package-$1.log contact=()
  [ -z "${DEBEMAIL:-}" ] || contact=(-D "CPACK_PACKAGE_CONTACT=${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>")
  cmake --preset release -B "$build" -DDDPRUN_BUILD_ONCE=ON -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_BENCH=OFF \
    -DDDPRUN_WITH_TORCH=OFF -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$PWD/=" >"$log"
  cmake --build "$build"
  rm -rf "$build/packages"
  (cd "$build" && cpack -G DEB "${contact[@]}" >>"$log")
  mkdir -p dist
  cp "$build"/packages/*.deb dist/
}

make_root() {  # NAME RELEASE PACKAGE…
  local name=$1 release=$2 root=build/debian/$1
  shift 2
  [ ! -e "$root.done" ] || return 0
  rm -rf "$root" && mkdir -p "$root"
  # apt-get installs the packages, because debootstrap's --include can't configure them in a working order.
  { debootstrap --variant=minbase "$release" "$root" && in_root "$name" apt-get update &&
    in_root "$name" apt-get install -y --no-install-recommends "$@"; } >"$root.log" 2>&1 || { tail -5 "$root.log"; exit 1; }
  touch "$root.done"
}

# in_root NAME COMMAND…: runs it in the root's /source, which is this tree, with CUDA's headers of this machine. Its
# mounts end with it.
in_root() {
  unshare --mount --propagation private bash -euc '
    source=$PWD
    mount --bind "build/debian/$1" "build/debian/$1"  # a test mounts in turn, for which / has to be a mount
    cd "build/debian/$1"
    shift
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmp tmp
    mkdir -p source
    mount --bind "$source" source
    if [ -d /usr/local/cuda ]; then
      mkdir -p usr/local/cuda
      mount --bind /usr/local/cuda usr/local/cuda
    fi
    exec chroot . env --chdir=/source LC_ALL=C.UTF-8 "$@"  # the only locale there
  ' bash "$@"
}

for release in "$@"; do
  echo "debian_packages: $release"
  if [ "$release" = "$here" ]; then
    make_packages "$release"
  else
    make_root "$release" "$release" dpkg-dev file
    in_root "$release" scripts/setup.sh minimal --no-torch
    in_root "$release" scripts/debian_packages.sh "$release"
  fi
  if [ $check = yes ]; then
    make_root "$release-check" "$release" lintian python3 systemd
    in_root "$release-check" apt-get -qq update
    in_root "$release-check" python3 -B tests/project/packages_test.py "build/package-$release/packages"
  fi
done
