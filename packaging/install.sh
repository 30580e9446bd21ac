#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs ddprun from the folder of this script: programs, helpers, manual pages, systemd units.
#
#   ./install.sh [--prefix DIR]        default: /usr/local
#   ./install.sh --uninstall [--prefix DIR]
#
# Nothing is started or enabled. A configuration in /etc/ddprun stays as it is.
set -eu
unset CDPATH
umask 022
prefix=/usr/local uninstall=no
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=${2:?install.sh: --prefix wants a directory}; shift ;;
    --prefix=*) prefix=${1#*=} ;;
    --uninstall) uninstall=yes ;;
    -h|--help) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install.sh: unknown argument '$1' (--prefix DIR, --uninstall)" >&2; exit 2 ;;
  esac
  shift
done
case $prefix in
  /*) ;;
  *) echo "install.sh: --prefix wants an absolute path, got '$prefix'" >&2; exit 2 ;;
esac
prefix=${prefix%/}
case $prefix in
  *[!A-Za-z0-9_./+-]*) echo "install.sh: --prefix: only letters, digits and _ . / + - are possible, for the systemd units" >&2; exit 2 ;;
esac
list=$prefix/share/ddprun/installed
remove() {
  # Python leaves its bytecode there if root imports the package.
  [ ! -d "$prefix/share/ddprun/python" ] || find "$prefix/share/ddprun/python" -name __pycache__ -type d -prune -exec rm -rf {} +
  while IFS= read -r file; do rm -f "$prefix/$file"; done <"$list"
  # Removes folders that are empty now, the innermost first.
  sed -n 's|/[^/]*$||p' "$list" | sort -ru | while IFS= read -r folder; do
    while [ -n "$folder" ] && rmdir "$prefix/$folder" 2>/dev/null; do
      case $folder in */*) folder=${folder%/*} ;; *) folder= ;; esac
    done
  done
}
if [ $uninstall = yes ]; then
  [ -e "$list" ] || { echo "install.sh: ddprun is not installed in $prefix: there is no $list" >&2; exit 1; }
  echo share/ddprun/installed >>"$list"
  copy=$(mktemp); cp "$list" "$copy"; list=$copy
  remove
  rm -f "$copy"
  echo "install.sh: removed from $prefix"
  exit 0
fi
cd -- "$(dirname -- "$0")"
mkdir -p "$prefix" && [ -w "$prefix" ] || { echo "install.sh: can't write to ${prefix:-/}: run it as root, or give --prefix" >&2; exit 1; }
[ ! -e "$list" ] || remove  # otherwise files of an older version would stay
mkdir -p "$prefix/share/ddprun"
find bin lib libexec share ! -type d | sort >"$list"  # written first, so that a broken-off installation can be removed
while IFS= read -r file; do
  mkdir -p "$prefix/$(dirname "$file")"
  rm -f "$prefix/$file"  # a running program keeps its old file
  cp -P "$file" "$prefix/$file"
done <"$list"
for unit in lib/systemd/system/* share/doc/ddprun/configs/systemd/*; do
  sed "s|/usr/bin/|$prefix/bin/|" "$unit" >"$prefix/$unit"
done
echo "install.sh: installed in $prefix: $("$prefix/bin/ddprun" --version | head -1)"
