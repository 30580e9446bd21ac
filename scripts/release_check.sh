#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a release of the last commit twice, in two new clones, and tags nothing. Fails if the files differ, if SHA256SUMS lacks
# one of them, or if the bill of materials is no SPDX document with its packages. Then pip compiles the source, and the program
# has to run a job of two workers.
#
#   scripts/release_check.sh     needs root and what scripts/setup.sh release installs
#
# The clones are build/release_check/first and second, both removed after a success.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  "") ;;
  -h|--help) sed -n '3,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "release_check: unknown argument '$1'" >&2; exit 2 ;;
esac
folder=$PWD/build/release_check
fail() { echo "release_check: $*" >&2; exit 1; }
rm -rf "$folder"
mkdir -p "$folder"
for clone in first second; do
  git clone --quiet . "$folder/$clone"
  (cd "$folder/$clone" && scripts/release.sh --no-tag) >"$folder/$clone.log" 2>&1 ||
    { tail -n 20 "$folder/$clone.log"; fail "no release: ${folder#"$PWD"/}/$clone.log"; }
  (cd "$folder/$clone/dist" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS is wrong"
done
differing=$(diff "$folder"/{first,second}/dist/SHA256SUMS) || { echo "$differing"; fail "two builds of one commit differ"; }
cd "$folder/first/dist"
version=$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' ../CMakeLists.txt)
for file in "ddprun-$version-py3-none-manylinux*_"{x86_64,aarch64}.whl "ddprun-$version-linux-"{x86_64,aarch64}.tar.gz \
            "ddprun-$version-1."{x86_64,aarch64}.rpm "ddprun_$version-1~deb"{12,13}"u1_*.deb" "libddprun-dev_$version-1~deb"{12,13}"u1_*.deb" \
            "ddprun-$version.tar.gz" "ddprun-$version.spdx.json"; do
  # shellcheck disable=SC2086  # the name may be a pattern
  found=$(ls -d $file 2>/dev/null) || fail "there is no $file"
  grep -qF "  $found" SHA256SUMS || fail "SHA256SUMS has no $found"
done
python3 - "ddprun-$version.spdx.json" "$version" <<'PYTHON' || fail "ddprun-$version.spdx.json is no bill of these programs"
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    bill = json.load(file)
versions = {package["name"]: package["versionInfo"] for package in bill["packages"]}
linked = {each["relatedSpdxElement"] for each in bill["relationships"] if each["relationshipType"] == "STATIC_LINK"}
assert bill["spdxVersion"] == "SPDX-2.3" and versions["ddprun"] == sys.argv[2] and all(versions.values()), bill
assert {"openssl", "sqlite", "ncurses", "boost"} <= versions.keys(), versions
assert linked == {package["SPDXID"] for package in bill["packages"] if package["name"] != "ddprun"}, linked
PYTHON
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-index "ddprun-$version.tar.gz" >"$folder/pip.log" 2>&1 ||
  { tail -n 20 "$folder/pip.log"; fail "pip can't install ddprun-$version.tar.gz"; }
# shellcheck disable=SC2016  # the workers' shells expand it
said=$(timeout 60 "$folder/venv/bin/ddprun" --standalone --nproc_per_node=2 sh -c 'echo "rank $RANK of $WORLD_SIZE"' 2>&1) &&
  [[ $said == *"rank 0 of 2"* && $said == *"rank 1 of 2"* ]] || { echo "$said"; fail "the source's ddprun runs no job of two workers"; }
rm -rf "$folder"/{first,second,venv}
echo "release_check: two builds have the same bytes, and the source runs a job"
