#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the container image and the conda package from the release's tarball, without a registry or a channel. Runs their
# programs: a job, and ddprund as the image's user until SIGTERM. Containers share this machine's network and processes.
#
#   scripts/image_check.sh [--no-build]     --no-build: takes the tarball that is in dist/
#
# Needs root, and what scripts/setup.sh release installs. Debian's root is kept in build/wheel/roots.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=yes
case ${1:-} in
  "") ;;
  --no-build) build=no ;;
  -h|--help) sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "image_check: unknown argument '$1' (--no-build)" >&2; exit 2 ;;
esac
source scripts/roots.sh
roots=$PWD/build/wheel/roots root=$roots/bookworm-amd64-minimal work=$PWD/build/image pid=""
fail() { echo "image_check: $*" >&2; exit 1; }
buildah=(timeout 600 buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
clean_up() {
  [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
  "${buildah[@]}" rm --all >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work"  # whatever may still be mounted there stays
}
trap clean_up EXIT
clean_up
mkdir -p "$roots" "$work/secret"
if [ $build = yes ]; then
  scripts/wheel.sh x86_64
  scripts/tarball.sh build/wheel/x86_64/stage/usr x86_64 dist
fi
version=$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

make_root bookworm/amd64 "$root"
# Makes two base images: Debian, and only the C library.
make_base() {  # NAME FILES…
  local container
  container=$("${buildah[@]}" from scratch)
  tar -C "$root" -c "${@:2}" >"$work/base.tar"
  "${buildah[@]}" add -q "$container" "$work/base.tar" / >/dev/null
  "${buildah[@]}" commit -q --rm "$container" "localhost/$1" >/dev/null
}
make_image() { "${buildah[@]}" build -q --isolation chroot "$@" >/dev/null; }
make_base debian .
make_base libc --no-recursion tmp -T <(sed '/^.\.$/d; s|^/\(lib[^/]*\)/|usr/\1/|; s|^/||' "$root/var/lib/dpkg/info/libc6:amd64.list")
for base in debian libc; do
  make_image --build-arg BASE="localhost/$base" --build-arg VERSION="$version" -f packaging/container/Containerfile -t "localhost/on-$base" dist
done
inspect() { "${buildah[@]}" inspect --type image --format "$1" localhost/on-debian; }
[ "$(inspect '{{index .OCIv1.Config.Labels "org.opencontainers.image.version"}}')" = "$version" ] || fail "the label has another version"
user=$(inspect '{{.OCIv1.Config.User}}')
entrypoint=$(inspect '{{index .OCIv1.Config.Entrypoint 0}}')
run_in() { "${buildah[@]}" run --isolation chroot --volume "$work/secret:/run/secrets:ro" "$@"; }

container=$("${buildah[@]}" from localhost/on-libc)
run_in "$container" ddprun --standalone --nproc_per_node=2 --no-python ddprund --version | grep -F "[1] ddprund $version"
# Does what docs/packages.md says: copies the programs into an existing image.
sed -n 's|^COPY --from=your/ddprun:1 |FROM localhost/debian\nCOPY --from=localhost/on-debian |p' docs/packages.md >"$work/Containerfile"
make_image -f "$work/Containerfile" -t localhost/other "$work/secret"
container=$("${buildah[@]}" from localhost/other)
run_in "$container" ddprun --version | grep -F "ddprun $version"
container=$("${buildah[@]}" from localhost/on-debian)
said=$(run_in "$container" ddprun --standalone --nproc_per_node=2 --no-python sh -c 'echo $RANK of $(id -u)' 2>&1)
[[ $said == *"0 of ${user%:*}"* && $said == *"1 of ${user%:*}"* ]] || fail "the job said: $said"

# With the manifest's fsGroup a Secret of Kubernetes belongs to root, and its group may read it.
head -c 24 /dev/urandom | base64 >"$work/secret/token"
chown "0:${user#*:}" "$work/secret/token"
chmod 440 "$work/secret/token"
coproc daemon { run_in "$container" "$entrypoint" --listen=127.0.0.1:0 --token-file=/run/secrets/token 2>&1; }
process=$daemon_PID port=""
while read -r -t 60 line <&"${daemon[0]}"; do
  echo "$line"
  [[ $line != *"listening on"* ]] || { port=${line##*:}; break; }
done
[ -n "$port" ] || fail "ddprund doesn't listen"
pid=$(ss -Hltnp "sport = :$port" | sed -n 's/.*pid=\([0-9]*\).*/\1/p')
[ "$(awk '$1 == "Uid:" { print $2 }' "/proc/$pid/status")" = "${user%:*}" ] || fail "ddprund isn't user $user"
said=$(run_in "$container" ddprunctl status --rdzv-endpoint="127.0.0.1:$port" --token-file=/run/secrets/token 2>&1) || fail "ddprund doesn't answer: $said"
kill "$pid"
wait "$process" || fail "ddprund ended with $? after SIGTERM"
pid=""
echo "image_check: the image is tried"

tools=$roots/conda-tools
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --require-hashes -r scripts/wheels/conda.lock
DDPRUN_VERSION=$version RATTLER_CACHE_DIR=$work/cache timeout 600 "$tools/bin/python" - "$work/conda" <<'PYTHON'
import sys
import rattler_build
recipe = rattler_build.Stage0Recipe.from_file("packaging/conda/recipe.yaml")
for platform, architecture in (("linux-64", "x86_64"), ("linux-aarch64", "aarch64")):
    (variant,) = recipe.render(render_config=rattler_build.RenderConfig(rattler_build.PlatformConfig(
        target_platform=platform, host_platform=platform, build_platform="linux-64")))
    assert architecture in variant.recipe.to_dict()["source"][0]["path"], platform
# Installed and tested in an environment of its own.
(package,) = recipe.run_build(output_dir=sys.argv[1], channels=[], tool_config=rattler_build.ToolConfiguration(test_strategy="native"))
print(*package.packages)
PYTHON
echo "image_check: all passed"
