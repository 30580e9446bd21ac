#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel: ddprun's programs for every Linux with glibc ≥ 2.17, and the package `ddprun`.
# It lands in dist/. Installs nothing outside build/ and dist/.
#
#   scripts/wheel.sh [x86_64|aarch64]     default: this machine's architecture
#
# scripts/setup.sh release installs what it needs.
# Downloads: the compiler from PyPI (Zig's clang, 80 MB, by hash), OpenSSL's, SQLite's and ncurses' sources
# from Debian (35 MB, signed).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  -h|--help) sed -n '3,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
architecture=${1:-$(uname -m)}
case $architecture in
  x86_64) openssl_target=linux-x86_64 ;;
  aarch64) openssl_target=linux-aarch64 ;;
  *) echo "wheel: unknown architecture '$architecture' (x86_64 or aarch64)" >&2; exit 2 ;;
esac
root=$PWD/build/wheel
sources=$root/sources
build=$root/$architecture
dependencies=$build/dependencies
export DDPRUN_WHEEL_ARCHITECTURE=$architecture DDPRUN_WHEEL_TOOLS=$build/tools DDPRUN_WHEEL_DEPENDENCIES=$dependencies
export ZIG_GLOBAL_CACHE_DIR=$root/zig-cache ZIG_LOCAL_CACHE_DIR=$root/zig-cache
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CCACHE_DISABLE=1  # ccache changes the names of sources, which are in the programs
mkdir -p "$sources" "$build/tools" "$dependencies/include" "$dependencies/lib" "$dependencies/cmake"

say() { printf 'wheel: %s\n' "$*"; }
# once NAME FUNCTION…: runs the function unless an earlier run has done so, with its output in a log. It runs again
# if this script or the compiler's version changes. `rm -r build/wheel` also fetches newer sources.
once() {
  local name=$1 log=$build/$1.log stamp status
  stamp=$build/$name.$(cat scripts/wheel.sh scripts/wheels/wheel.lock | sha256sum | cut -c1-16).done
  shift
  [ ! -e "$stamp" ] || return 0
  say "$name"
  set +e  # not `if (…)`: bash ignores set -e in a condition, also in a subshell
  (set -e; "$@") >"$log" 2>&1
  status=$?
  set -e
  if [ $status -ne 0 ]; then tail -20 "$log"; say "$name failed: $log"; exit 1; fi
  touch "$stamp"
}

get_compiler() {
  python3 -m venv "$root/venv"
  "$root/venv/bin/pip" install --quiet --require-hashes -r scripts/wheels/wheel.lock
}
# The name has the lock file's hash, so a changed version is installed anew.
venv_done=$root/venv/$(sha256sum <scripts/wheels/wheel.lock | cut -c1-16).done
[ -e "$venv_done" ] || { say "compiler"; get_compiler; touch "$venv_done"; }
zig=$("$root/venv/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__) + "/zig")')
for tool in cc c++ ar ranlib; do
  target=""
  # Programs have their sources' names in them. Without this checkout's folder, two checkouts make the same bytes.
  case $tool in cc|c++) target="-target $architecture-linux-gnu.2.17 '-ffile-prefix-map=$PWD/='" ;; esac
  printf '#!/bin/sh\nexec "%s" %s %s "$@"\n' "$zig" "$tool" "$target" >"$build/tools/zig-$tool"
  chmod +x "$build/tools/zig-$tool"
done
export CC=$build/tools/zig-cc AR=$build/tools/zig-ar RANLIB=$build/tools/zig-ranlib

# Fetches the newest sources that Debian has for this machine's release. apt checks their signatures.
get_sources() {
  cd "$sources"
  local release keys=/usr/share/keyrings/debian-archive-keyring.gpg package
  release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  mkdir -p apt/lists/partial apt/cache
  printf 'deb-src [signed-by=%s] http://deb.debian.org/%s main\n' \
    $keys "debian $release" $keys "debian-security $release-security" >apt/sources.list
  local apt=(apt-get -o "Dir::Etc::SourceList=$PWD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
             -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  # SQLite and ncurses have Debian's patches. OpenSSL's own release has all corrections already.
  "${apt[@]}" source sqlite3 ncurses
  "${apt[@]}" source --tar-only openssl
  tar xf openssl_*.orig.tar.gz
  for package in openssl sqlite3 ncurses; do
    ln -sfn "$(find . -maxdepth 1 -type d -name "$package-[0-9]*" | sort -V | tail -1)" "$package"
  done
}

build_openssl() {
  rm -rf "$build/openssl" && cp -r "$sources/openssl/." "$build/openssl" && cd "$build/openssl"
  # Leaves out all that TLS 1.3 doesn't need, because ddprun uses no other version.
  local without=(shared module engine legacy tests comp cms cmp ts ocsp ct srp psk dtls dsa dh des ec2m idea camellia seed bf cast
                 rc2 rc4 md4 mdc2 rmd160 whirlpool sm2 sm3 sm4 aria gost blake2 scrypt siphash ssl-trace ui-console
                 nextprotoneg srtp tls1 tls1_1 tls1_2 rfc3779 ocb multiblock)
  ./Configure "$openssl_target" "${without[@]/#/no-}" -fPIC -Os -ffunction-sections -fdata-sections \
    -fno-asynchronous-unwind-tables \
    --prefix=/usr --libdir=lib --openssldir=/etc/ssl
  make -j"$(nproc)" build_libs
  make install_dev DESTDIR="$build/openssl/stage"
  cp -r stage/usr/include stage/usr/lib "$dependencies"
}
build_sqlite() {
  rm -rf "$build/sqlite" && cp -r "$sources/sqlite3/." "$build/sqlite" && cd "$build/sqlite"
  CC=cc ./configure --disable-tcl --disable-shared
  CC=cc make sqlite3.c
  "$CC" -c -Os -fPIC -fno-asynchronous-unwind-tables -DSQLITE_THREADSAFE=1 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_DQS=0 sqlite3.c -o sqlite3.o
  "$AR" rcs "$dependencies/lib/libsqlite3.a" sqlite3.o
  cp sqlite3.h sqlite3ext.h "$dependencies/include"
}
# Builds the descriptions of common terminals in, for machines without terminfo.
build_ncurses() {
  rm -rf "$build/ncurses" && cp -r "$sources/ncurses/." "$build/ncurses" && cd "$build/ncurses"
  ./configure --host="$architecture-linux-gnu" --with-build-cc=cc --without-shared --with-normal --without-debug --without-ada \
    --without-cxx --without-cxx-binding --without-progs --without-manpages --without-tests --enable-widec --enable-overwrite --with-form \
    --prefix="$dependencies" --with-default-terminfo-dir=/usr/share/terminfo --disable-db-install \
    --with-terminfo-dirs=/etc/terminfo:/lib/terminfo:/usr/share/terminfo --disable-stripping CFLAGS="-O2 -fPIC" \
    --with-fallbacks=xterm-256color,xterm,screen-256color,screen,tmux-256color,linux,vt100
  make -j"$(nproc)" libs
  make install.libs install.includes
  ln -sfn . "$dependencies/include/ncursesw"  # CMake looks in ncursesw/
}
# Links the installed headers of header-only libraries.
build_headers() {
  local include=$dependencies/include
  for folder in boost CLI spdlog fmt toml++; do ln -sfn "/usr/include/$folder" "$include/$folder"; done
  for header in elfutils libelf.h gelf.h; do ln -sfn "/usr/include/$header" "$include/$header"; done  # for libdw, loaded by dlopen
  mkdir -p "$dependencies/usr/local"
  ln -sfn /usr/local/cuda "$dependencies/usr/local/cuda"  # headers for ddprun-check, which loads NCCL if there is one
  printf '#include <boost/json/src.hpp>\n' >"$build/json.cc"
  "$build/tools/zig-c++" -c -std=c++20 -O2 -fPIC -I"$include" "$build/json.cc" -o "$build/json.o"
  "$AR" rcs "$dependencies/lib/libboost_json.a" "$build/json.o"
  "$AR" rcs "$dependencies/lib/libboost_container.a"  # empty: CMake looks for it, but Boost.JSON needs only its headers
  cmake_package CLI11 CLI11::CLI11 ""
  cmake_package spdlog spdlog::spdlog "SPDLOG_FMT_EXTERNAL;FMT_HEADER_ONLY"
}
cmake_package() {  # PACKAGE TARGET DEFINITIONS
  printf 'add_library(%s INTERFACE IMPORTED)\nset_property(TARGET %s PROPERTY INTERFACE_COMPILE_DEFINITIONS "%s")\n' \
    "$2" "$2" "$3" >"$dependencies/cmake/$1Config.cmake"
}
once sources get_sources
once openssl build_openssl
once sqlite build_sqlite
once ncurses build_ncurses
once headers build_headers

say "ddprun"
pages=""
if [ "$architecture" != "$(uname -m)" ]; then
  pages=$root/$(uname -m)/ddprun/bin  # programs for another machine can't print their own manual pages
  [ -x "$pages/ddprun" ] || { say "run scripts/wheel.sh first without an architecture: its programs print the manual pages"; exit 1; }
fi
cmake --toolchain packaging/zig.cmake -S . -B "$build/ddprun" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDDPRUN_BUILD_ONCE=ON \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DDDPRUN_BUILD_TESTS=OFF -DDDPRUN_BUILD_BENCH=OFF -DDDPRUN_WITH_TORCH=OFF \
  -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG -ffunction-sections -fdata-sections -flto" \
  -DCMAKE_EXE_LINKER_FLAGS="-s -flto -Wl,--gc-sections" -DCMAKE_SHARED_LINKER_FLAGS="-s -flto -Wl,--gc-sections" -DCMAKE_PREFIX_PATH=/ -DDDPRUN_PAGES_BY="$pages" >"$build/configure.log" 2>&1 ||
  { tail -20 "$build/configure.log"; exit 1; }
cmake --build "$build/ddprun"

say "packing"
rm -rf "$build/stage"
DESTDIR=$build/stage cmake --install "$build/ddprun" --prefix /usr --component Unspecified >/dev/null
wheel=$(packaging/pack_wheel.py "$build/stage/usr" "py3-none-manylinux2014_$architecture.manylinux_2_17_$architecture" dist)
ls -l "$wheel"
