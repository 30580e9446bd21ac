#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what ddprun's build needs and lacks: Debian packages with apt, LibTorch from the `torch`
# wheel into .venv. Says what it will install before it does; quick when nothing is missing.
#
#   scripts/setup.sh [minimal|checks|gpu|full|bench] [--no-torch] [--dry-run]
#     minimal   what scripts/demo.sh needs: compiler, libraries, LibTorch for a CPU program (default)
#     checks    only what scripts/test.sh --only checks needs: clang-format
#     gpu       minimal and what scripts/gpu_check.sh needs: Catch2, PyTorch with all of its wheels
#     full      also what scripts/test.sh needs: Catch2, clang, etcd, a Chromium, PyTorch with all of its wheels
#     bench     also what bench/run.py compares with: MPICH's mpiexec.hydra; a DNS server
#     --no-torch fetches no PyTorch: at minimal and gpu Debian packages only, then .venv is left alone
#     --dry-run only says what is missing; exit status 1 if anything is
#
# Touches only apt's packages, .venv and .cache here; uses sudo only where not root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kTorch=2.15.0
level=minimal dry_run=no torch=yes

# What each is for: docs/architecture.md, "Dependencies".
packages=(g++ cmake ninja-build libspdlog-dev libcli11-dev libsqlite3-dev libssl-dev libtomlplusplus-dev zlib1g-dev libdw-dev libncurses-dev python3
          python3-venv ca-certificates)
packages_full=(catch2 ccache etcd-server iproute2 procps clang lld clang-format-14 clang-tidy-14 libclang-rt-dev
               dpkg-dev libfaketime lintian openssh-client openssh-server strace systemd fish mandoc tmux user-mode-linux zsh)
packages_bench=(mpich dnsmasq-base)
packages_browser=(chromium-headless-shell fonts-dejavu-core)  # of Debian; elsewhere tests with it skip
# Unpacked into .cache for tests, not installed: no service is set up, and a kubectl that is here stays.
packages_slurm=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libhwloc15 libnuma1)
packages_kubernetes=(kubernetes-client)
packages_prometheus=(prometheus)  # a Go program: it needs nothing of what the package depends on
# Schemas of Kubernetes' objects, and JobSet's: what `ddprunctl submit` makes is checked against them.
wheels_full=(kubernetes-validate kubeflow-trainer-api jax)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

for argument in "$@"; do
  case $argument in
    minimal|checks|gpu|full|bench) level=$argument ;;
    --no-torch) torch=no ;;
    --dry-run) dry_run=yes ;;
    -h|--help) sed -n '3,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument '$argument' (minimal, checks, gpu, full, bench, --no-torch or --dry-run)" ;;
  esac
done

# Boost.Asio ≥ 1.81. Debian 12 carries it beside its older default; later releases have a newer default.
release=$(sed -n 's/^\(ID\|VERSION_ID\)="\{0,1\}\([^"]*\).*/\2/p' /etc/os-release | sort -r | tr -d '\n')
if [ "$release" = debian12 ]; then
  packages+=(libboost1.81-dev libboost-json1.81-dev)
else
  packages+=(libboost-dev libboost-json-dev)
fi
has_all() { [ "$level" = full ] || [ "$level" = bench ]; }
! has_all || packages+=("${packages_full[@]}")
if has_all && [[ $release == debian* ]]; then packages+=("${packages_browser[@]}"); fi
[ "$level" != gpu ] || packages+=(catch2)
[ "$level" != checks ] || packages=(python3 clang-format-14)
[ "$level" != bench ] || packages+=("${packages_bench[@]}")

missing_packages() {
  local installed package
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ $installed == *" installed:$package "* ]] || echo "$package"
  done
}

# Prints the requirements (pip's notation) that .venv lacks. Torch's own metadata decides which
# versions: a CPU program needs only the CUDA runtime and CUPTI beside libtorch_cpu.so.
missing_wheels() {
  [ "$level" != checks ] || return 0
  [ $torch = yes ] || has_all || return 0
  if [ ! -x .venv/bin/python3 ]; then
    if [ $torch = yes ]; then echo "torch==$kTorch"; else printf '%s\n' "${wheels_full[@]}"; fi
    return
  fi
  .venv/bin/python3 - "$kTorch" "$level" $torch "${wheels_full[@]}" <<'PYTHON'
import importlib.metadata as metadata, re, sys
wanted, level, torch, *wheels_full = sys.argv[1:]
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
if torch == "no":
    print("\n".join(name for name in wheels_full if not version(name)))
elif (version("torch") or "").split("+")[0] != wanted:
    print(f"torch=={wanted}")
elif level == "minimal":
    toolkit = next((r for r in metadata.requires("torch") if r.startswith("cuda-toolkit[")), None)
    if toolkit and not (version("nvidia-cuda-runtime") and version("nvidia-cuda-cupti")):
        print("cuda-toolkit[cudart,cupti]" + re.search(r"[=<>~!].*?(?=;|$)", toolkit)[0].strip())
else:
    needed = {re.match(r"[A-Za-z0-9._-]+", r)[0] for r in metadata.requires("torch")
              if "extra ==" not in r} | {"numpy", "safetensors"}
    if level != "gpu":
        needed |= set(wheels_full)
    print("\n".join(sorted(n for n in needed if not version(n))))
PYTHON
}

install_packages() {
  say "installing Debian packages: $*"
  command -v apt-get >/dev/null ||
    die "no apt-get here: install the equivalent of: $* and run this again"
  [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
    die "neither root nor sudo: ask an administrator for: apt-get install $*"
  # apt and dpkg print hundreds of lines; the one that says what went wrong is picked out of them.
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
  # The tests start servers of their own; the package's would only be in the way.
  [[ " $* " != *" etcd-server "* ]] || as_root systemctl disable --now etcd >/dev/null 2>&1 || true
  rm -f "$log"
}

make_venv() {
  # Without pip it is one that was killed while it was made: made again in place.
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

# What pip says on stderr is the complaint that the rest of torch's requirements is absent, which is
# the purpose here, or pages of retries before the reason. On a terminal its stdout is the progress.
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
    die "pip could not install $*: ${why#ERROR: } (all of its output: $log)"
  fi
  rm -f "$log"
  [ -t 1 ] || say "pip has installed $* in $((SECONDS - begin)) s"
}

install_wheels() {
  make_venv
  if [ $torch = no ]; then
    say "installing into .venv: $(echo $wheels)"
    pip_install "${wheels_full[@]}"
    return
  fi
  if has_all || [ "$level" = gpu ]; then
    say "installing into .venv: torch $kTorch with all of its wheels, numpy, safetensors (about 3 GB to fetch)"
    pip_install "torch==$kTorch" "numpy>=2,<3" safetensors
    ! has_all || pip_install "${wheels_full[@]}"
    return
  fi
  if [[ $wheels == torch==* ]]; then
    say "installing into .venv: torch $kTorch without its dependencies (about 500 MB to fetch)"
    pip_install --no-deps --no-compile "torch==$kTorch"  # the demo runs no Python of it
  fi
  local rest
  rest=$(missing_wheels)
  if [ -n "$rest" ]; then
    say "installing into .venv: $rest"
    # shellcheck disable=SC2086  # one requirement per word
    pip_install $rest
  fi
}

# The tests start PyTorch a hundred times. A third of such a start is Python's garbage collector, which runs
# for each 700 objects and once more at the end. Benchmarks have Python as it is.
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

# unpack NAME PACKAGE…: into .cache/NAME, unless that is there.
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
[ -z "$wheels" ] || say "missing in .venv: ${wheels//$'\n'/ }"
! missing_unpacked || say "missing in .cache: Slurm, kubectl or Prometheus, unpacked for tests (30 MB to fetch)"
[ "$dry_run" = no ] || exit 1
[ ${#need_packages[@]} -eq 0 ] || install_packages "${need_packages[@]}"
[ -z "$wheels" ] || install_wheels
! missing_unpacked || unpack_all

mapfile -t need_packages < <(missing_packages)
wheels=$(missing_wheels)
[ ${#need_packages[@]} -eq 0 ] || die "still missing after the installation: ${need_packages[*]}"
[ -z "$wheels" ] || die "still missing in .venv after the installation: ${wheels//$'\n'/ }"
spare_collections
say "done ($level)"
