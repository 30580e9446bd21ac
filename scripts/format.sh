#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats the C++ sources with clang-format 14 (.clang-format: Google, 100 columns).
#
#   scripts/format.sh [FILE…]           rewrites them (default: every .h and .cc that git knows)
#   scripts/format.sh --check [FILE…]   changes nothing; exit status 1 and the names where it would
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

check=no
if [ "${1:-}" = --check ]; then check=yes; shift; fi
format=$(command -v clang-format-14 || command -v clang-format) ||
  { echo "format: clang-format is missing: scripts/setup.sh full" >&2; exit 1; }
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc')

if [ "$check" = no ]; then
  "$format" -i "${files[@]}"
  echo "format: ${#files[@]} files formatted"
  exit 0
fi
bad=$("$format" --dry-run "${files[@]}" 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning.*/\1/p' | sort -u)
if [ -n "$bad" ]; then
  printf '%s\n' "$bad"
  echo "format: $(wc -l <<<"$bad") of ${#files[@]} files are not formatted: scripts/format.sh"
  exit 1
fi
echo "format: ${#files[@]} files are formatted"
