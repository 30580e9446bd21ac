#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes all files of a release in dist/ and tags the commit. They are wheels, tarballs and RPMs for x86-64 and ARM64, packages
# for Debian 12 and 13, the source, a bill of materials (SPDX) and SHA256SUMS. Publishes nothing.
#
#   scripts/release.sh [--no-tag]      --no-tag: makes the files only, also of a tree with changes
#
# The version is CMakeLists.txt's. CHANGELOG.md has to have its section. The same commit makes the same bytes while Debian's
# sources and headers are the same. scripts/setup.sh release installs what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tag=yes
case ${1:-} in
  "") ;;
  --no-tag) tag=no ;;
  -h|--help) sed -n '3,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "release: unknown argument '$1' (--no-tag)" >&2; exit 2 ;;
esac
refuse() { echo "release: $*" >&2; exit 2; }
version=$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
if [ $tag = yes ]; then
  [ -z "$(git status --porcelain)" ] || refuse "the tree has changes: commit them first"
  grep -q "^## \[$version\] - 20..-..-..$" CHANGELOG.md || refuse "CHANGELOG.md has no section \"## [$version] - DATE\""
  ! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || refuse "v$version is tagged: set a new version in CMakeLists.txt"
  [ -n "${DEBEMAIL:-}" ] || refuse "DEBEMAIL is not set: Debian packages name their maintainer (docs/packages.md)"
fi
for program in qemu-aarch64-static rpmbuild debootstrap dpkg-shlibdeps tclsh tic; do
  command -v "$program" >/dev/null || refuse "no $program here: scripts/setup.sh release"
done
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf dist build/wheel build/debian build/package-*  # so that nothing of an earlier version, flag or source is left

for architecture in x86_64 aarch64; do
  scripts/wheel.sh $architecture
  stage=$PWD/build/wheel/$architecture/stage
  scripts/tarball.sh "$stage/usr" $architecture dist
  rpmbuild -bb --quiet --target $architecture packaging/ddprun.spec --define "ddprun_version $version" \
    --define "ddprun_tree $stage" --define "ddprun_license $PWD/LICENSE" --define "_topdir $PWD/build/rpm" --define "_rpmdir $PWD/dist" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" --define "_buildhost reproducible" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1"
done

scripts/debian_packages.sh

PYTHONPATH=packaging python3 -B -c 'import pack_wheel; pack_wheel.build_sdist("dist")'
packaging/sbom.py "$version" build/wheel/x86_64/dependencies >"dist/ddprun-$version.spdx.json"
(cd dist && sha256sum -- * >SHA256SUMS)
if [ $tag = yes ]; then
  [ "$(git rev-parse HEAD)" = "$commit" ] && [ -z "$(git status --porcelain)" ] || refuse "the tree has changed meanwhile"
  git tag -a "v$version" -m "ddprun $version" "$commit"
fi
ls -l dist
echo "release: ddprun $version is in dist/$([ $tag = no ] || echo ", tagged v$version; push the tag yourself")"
