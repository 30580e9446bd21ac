# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/wheel_check.sh, scripts/image_check.sh and scripts/torch_versions.sh.

# make_root RELEASE/ARCHITECTURE FOLDER [PACKAGE,…]: a minimal Debian in FOLDER, unless it is there.
make_root() {
  [ ! -e "$2.done" ] || return 0
  rm -rf "$2"
  debootstrap --arch="${1#*/}" --variant=minbase ${3:+--include="$3"} "${1%/*}" "$2" >"$2.log" 2>&1 || { tail -5 "$2.log"; exit 1; }
  touch "$2.done"
}
