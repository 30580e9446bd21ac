#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what ddprun's build needs and lacks: Debian packages with apt, LibTorch from the `torch`
# wheel into .venv. Says what it will install before it does; quick when nothing is missing.
#
#   scripts/setup.sh [minimal|checks|gpu|full|bench|release] [--no-torch] [--dry-run]
#     minimal   what scripts/demo.sh needs: compiler, libraries, LibTorch for a CPU program (default)
#     checks    only what scripts/test.sh --only checks needs: clang-format
#     gpu       minimal and what scripts/gpu_check.sh needs: Catch2, PyTorch with all of its wheels
#     full      also what scripts/test.sh needs: Catch2, clang, etcd, a Chromium, PyTorch with all of its wheels
#     bench     full and what bench/run.py compares with: MPICH's mpiexec.hydra; a DNS server
#     release   full and what release.sh, wheel_check.sh, image_check.sh and torch_versions.sh need: ARM64's qemu, rpm,
#               debootstrap, buildah, Python.h
#     --no-torch fetches no PyTorch: at minimal and gpu Debian packages only, then .venv is left alone
#     --dry-run only says what is missing; exit status 1 if anything is
#
# The wheels' versions and hashes are those of scripts/wheels/*.lock; a file with another hash is refused.
# Touches only apt's packages, .venv and .cache here; uses sudo only where not root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

level=minimal dry_run=no torch=yes

# docs/internals/architecture.md, "Dependencies", explains the purpose of each.
packages=(g++ cmake ninja-build libspdlog-dev libcli11-dev libsqlite3-dev libssl-dev libtomlplusplus-dev zlib1g-dev libdw-dev libncurses-dev python3
          python3-venv ca-certificates)
packages_full=(catch2 ccache etcd-server iproute2 procps clang lld libclang-rt-dev
               dpkg-dev gdb libfaketime lintian openssh-client openssh-server rpm strace systemd fish mandoc tmux user-mode-linux valgrind zsh)
packages_bench=(mpich dnsmasq-base)
packages_release=(buildah debootstrap python3-dev qemu-user qemu-user-static tcl)
packages_browser=(chromium-headless-shell fonts-dejavu-core)  # Debian's; elsewhere tests that need it skip
# These are unpacked into .cache for tests, not installed: so no service is set up, and an installed kubectl stays.
packages_slurm=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libhwloc15 libnuma1)
packages_kubernetes=(kubernetes-client)
packages_prometheus=(prometheus)  # a Go program, which needs none of the package's dependencies

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

for argument in "$@"; do
  case $argument in
    minimal|checks|gpu|full|bench|release) level=$argument ;;
    --no-torch) torch=no ;;
    --dry-run) dry_run=yes ;;
    -h|--help) sed -n '3,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument '$argument' (minimal, checks, gpu, full, bench, release, --no-torch or --dry-run)" ;;
  esac
done

# Boost.Asio ≥ 1.81 is needed. Debian 12 has it beside its older default; later releases have it as default.
release=$(sed -n 's/^\(ID\|VERSION_ID\)="\{0,1\}\([^"]*\).*/\2/p' /etc/os-release | sort -r | tr -d '\n')
if [ "$release" = debian12 ]; then
  packages+=(libboost1.81-dev libboost-json1.81-dev)
else
  packages+=(libboost-dev libboost-json-dev)
fi
# Debian 13 has no clang 14, so formatting and clang-tidy are left out there.
[ "$release" = debian13 ] || packages_full+=(clang-format-14 clang-tidy-14)
has_all() { [[ $level =~ ^(full|bench|release)$ ]]; }
! has_all || packages+=("${packages_full[@]}")
if has_all && [[ $release == debian* ]]; then packages+=("${packages_browser[@]}"); fi
[ "$level" != gpu ] || packages+=(catch2)
[ "$level" != checks ] || packages=(python3 clang-format-14)
[ "$level" != bench ] || packages+=("${packages_bench[@]}")
[ "$level" != release ] || packages+=("${packages_release[@]}")

missing_packages() {
  local installed package
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ $installed == *" installed:$package "* ]] || echo "$package"
  done
}

# Prints the entries of the lock files, with their hashes, that .venv lacks at this level. All of them
# where there is no .venv.
missing_wheels() {
  local locks=(scripts/wheels/torch.lock) only="" python=python3
  case $level in
    checks) return ;;
    minimal) only="torch nvidia-cuda-runtime nvidia-cuda-cupti" ;;  # what libtorch_cpu.so loads
    full|bench|release) locks+=(scripts/wheels/tests.lock) ;;
  esac
  if [ $torch = no ]; then
    has_all || return 0
    locks=(scripts/wheels/tests.lock)
  fi
  [ ! -x .venv/bin/python3 ] || python=.venv/bin/python3
  "$python" - "$only" "${locks[@]}" <<'PYTHON'
import importlib.metadata as metadata, re, sys
only, *locks = sys.argv[1:]
try:
    from pip._vendor.packaging.markers import Marker
except ImportError:  # the system has no pip; .venv will have one
    Marker = None
def is_wanted(name, marker):
    return (not only or name in only.split()) and (not marker or not Marker or Marker(marker).evaluate())
def is_here(name, version):
    try:
        return sys.prefix != sys.base_prefix and metadata.version(name).split("+")[0] == version
    except metadata.PackageNotFoundError:
        return False
printed = set()  # some wheels are in both files
for lock in locks:
    for entry in re.finditer(r"^(\S+)==(\S+)(?: ; (.*))? \\\n(?:    .*\n)+", open(lock).read(), re.M):
        name, version, marker = entry.groups()
        if name not in printed and is_wanted(name, marker) and not is_here(name, version):
            print(entry[0], end="")
            printed.add(name)
PYTHON
}

names_of() { grep -o '^[^ ]*==[^ ]*' <<<"$1" | tr '\n' ' '; }

install_packages() {
  say "installing Debian packages: $*"
  command -v apt-get >/dev/null ||
    die "no apt-get here: install the equivalent of: $* and run this again"
  [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
    die "neither root nor sudo: ask an administrator for: apt-get install $*"
  # apt and dpkg print hundreds of lines. Only the line with the error is shown.
  local log why quiet=(env DEBIAN_FRONTEND=noninteractive)
  local apt=("${quiet[@]}" apt-get -y -o DPkg::Lock::Timeout=120)
  log=$(mktemp)
  # A set-up that was killed may have left packages half configured. Sources that do not answer matter
  # only if a package is missing from the others.
  as_root "${quiet[@]}" dpkg --configure -a >"$log" 2>&1 || true
  as_root "${apt[@]}" update >>"$log" 2>&1 || true
  if ! as_root "${apt[@]}" install --no-install-recommends "$@" >>"$log" 2>&1; then
    why=$(grep -m 1 -E '^[WE]: Failed to fetch' "$log" || grep -m 1 -E '^(E|sudo|dpkg): ' "$log" ||
          tail -n 1 "$log")
    die "apt could not install them: ${why#[WE]: } (all of its output: $log)"
  fi
  # Stops the package's server, because the tests start their own.
  [[ " $* " != *" etcd-server "* ]] || as_root systemctl disable --now etcd >/dev/null 2>&1 || true
  rm -f "$log"
}

make_venv() {
  # A .venv without pip was killed while it was made, so it is made again in place.
  if [ -x .venv/bin/python3 ] && .venv/bin/python3 -m pip --version >/dev/null 2>&1; then return; fi
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
      "$python" -m venv .venv
      return
    fi
  done
  die "python3 here cannot make virtual environments (modules venv and ensurepip)"
}

# Runs pip and shows only the reason of a failure, since its stderr has pages of retries. A terminal gets its progress.
pip_install() {
  local log why status=0 begin=$SECONDS
  local pip=(.venv/bin/python3 -m pip install --disable-pip-version-check)
  log=$(mktemp)
  if [ -t 1 ]; then
    "${pip[@]}" "$@" 2>"$log" || status=$?
  else
    "${pip[@]}" --quiet "$@" >"$log" 2>&1 || status=$?
  fi
  if [ $status -ne 0 ]; then
    why=$(grep -m 1 -oE "\[(Errno|SSL)[^]]*\][^'\")]*" "$log" || grep -m 1 '^ERROR: ' "$log" ||
          tail -n 1 "$log")
    die "pip could not install the wheels: ${why#ERROR: } (all of its output: $log)"
  fi
  rm -f "$log"
  [ -t 1 ] || say "pip has installed them in $((SECONDS - begin)) s"
}

install_wheels() {
  make_venv
  wheels=$(missing_wheels)
  [ -n "$wheels" ] || return 0
  local size="" more=()
  if [ "$level" = minimal ]; then
    size=" (about 500 MB to fetch)"
    more=(--no-compile)  # the demo runs no Python code of the wheel
  elif [ $torch = yes ]; then
    size=" (up to 3 GB to fetch)"
  fi
  say "installing into .venv$size: $(names_of "$wheels")"
  # The lock files have all dependencies, so pip needn't look for them.
  pip_install --no-deps "${more[@]}" --require-hashes --only-binary :all: -r <(echo "$wheels")
}

# Makes Python's garbage collector run less often. The tests start PyTorch a hundred times, and a third of a start
# is this collector, which runs for each 700 objects and at the end. Benchmarks use Python unchanged.
spare_collections() {
  if [ $dry_run = yes ] || [ $torch = no ] || ! has_all; then return; fi
  local file
  file=$(.venv/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/spare_collections.pth
  if [ "$level" = bench ]; then
    rm -f "$file"
  else
    echo 'import atexit, gc; gc.set_threshold(50_000, 20, 100); atexit.register(gc.freeze)' >"$file"
  fi
}

missing_unpacked() {
  has_all && [ "$release" = debian12 ] &&
    { [ ! -d .cache/slurm ] || [ ! -d .cache/kubernetes ] || [ ! -d .cache/prometheus ]; }
}

# unpack NAME PACKAGE…: unpacks them into .cache/NAME, unless that exists.
unpack() {
  local name=$1 directory package
  shift
  [ ! -d ".cache/$name" ] || return 0
  say "unpacking into .cache/$name: $*"
  directory=$(mktemp -d)
  if (cd "$directory" && apt-get -qq download "$@") 2>"$directory/why"; then
    mkdir -p .cache
    for package in "$directory"/*.deb; do dpkg -x "$package" "$directory/unpacked"; done
    mv "$directory/unpacked" ".cache/$name"
  else
    say "packages of $name could not be fetched; tests with it will skip: $(tail -n 1 "$directory/why")"
  fi
  rm -rf "$directory"
}

unpack_all() {
  unpack slurm "${packages_slurm[@]}"
  unpack kubernetes "${packages_kubernetes[@]}"
  unpack prometheus "${packages_prometheus[@]}"
}

mapfile -t need_packages < <(missing_packages)
wheels=$(missing_wheels)
if [ ${#need_packages[@]} -eq 0 ] && [ -z "$wheels" ] && ! missing_unpacked; then
  spare_collections
  say "nothing to install ($level)"
  exit 0
fi
[ ${#need_packages[@]} -eq 0 ] || say "missing Debian packages: ${need_packages[*]}"
[ -z "$wheels" ] || say "missing in .venv: $(names_of "$wheels")"
! missing_unpacked || say "missing in .cache: Slurm, kubectl or Prometheus, unpacked for tests (30 MB to fetch)"
[ "$dry_run" = no ] || exit 1
[ ${#need_packages[@]} -eq 0 ] || install_packages "${need_packages[@]}"
[ -z "$wheels" ] || install_wheels
! missing_unpacked || unpack_all

mapfile -t need_packages < <(missing_packages)
wheels=$(missing_wheels)
[ ${#need_packages[@]} -eq 0 ] || die "still missing after the installation: ${need_packages[*]}"
[ -z "$wheels" ] || die "still missing in .venv after the installation: $(names_of "$wheels")"
spare_collections
say "done ($level)"
