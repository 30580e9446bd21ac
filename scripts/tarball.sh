#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs an installed tree, install.sh, LICENSE and README.md into FOLDER/ddprun-VERSION-linux-ARCHITECTURE.tar.gz.
#
#   scripts/tarball.sh TREE ARCHITECTURE FOLDER     TREE: build/wheel/ARCHITECTURE/stage/usr of scripts/wheel.sh
#
# The same files make the same bytes: their times are $SOURCE_DATE_EPOCH's, else the commit's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -eq 3 ] || { sed -n '3,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
name=ddprun-$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)-linux-$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name" "$3"
cp -a "$1/." packaging/install.sh LICENSE README.md "$work/$name"
# These flags give the same names, owners and times each time.
tar --mode=u+rw,go+rX,go-w --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" \
  -C "$work" -c "$name" | gzip -9n >"$3/$name.tar.gz"
