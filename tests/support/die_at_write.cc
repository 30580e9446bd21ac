// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: kills the process at its n-th change of files below a directory.
//   DIE_BELOW  the directory, without symbolic links in it
//   DIE_AT     n, from 1. A write, a sync and a change of length count. The n-th is not done
//   DIE_HALF   set: only writes count, and half of the n-th one's bytes are written
// Changes are counted in the order in which the process makes them.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* const directory = std::getenv("DIE_BELOW");
const char* const at_text = std::getenv("DIE_AT");
const long at = at_text == nullptr ? 0 : std::atol(at_text);
const bool is_half = std::getenv("DIE_HALF") != nullptr;
std::atomic<long> num_done{0};

bool is_below(int file) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length < 0) return false;
  path[length] = 0;
  const std::size_t prefix = std::strlen(directory);
  return std::strncmp(path, directory, prefix) == 0 && path[prefix] == '/';
}

// Counts a call. Returns whether the process dies at it.
bool counts(int file) {
  if (directory == nullptr || at == 0) return false;
  const int error = errno;
  const bool is_it = is_below(file) && ++num_done == at;
  errno = error;
  return is_it;
}

[[noreturn]] void die() {
  for (;;) ::kill(::getpid(), SIGKILL);
}

void die_before(int file) {
  if (!is_half && counts(file)) die();
}

ssize_t write_at(int file, const void* bytes, std::size_t size, off_t offset) {
  if (counts(file)) {
    if (is_half) ::syscall(SYS_pwrite64, file, bytes, size / 2, offset);
    die();
  }
  return ::syscall(SYS_pwrite64, file, bytes, size, offset);
}

}  // namespace

extern "C" {

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  return write_at(file, bytes, size, offset);
}

ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t offset) {
  return write_at(file, bytes, size, offset);
}

ssize_t write(int file, const void* bytes, size_t size) {
  if (counts(file)) {
    if (is_half) ::syscall(SYS_write, file, bytes, size / 2);
    die();
  }
  return ::syscall(SYS_write, file, bytes, size);
}

int fsync(int file) {
  die_before(file);
  return static_cast<int>(::syscall(SYS_fsync, file));
}

int fdatasync(int file) {
  die_before(file);
  return static_cast<int>(::syscall(SYS_fdatasync, file));
}

int ftruncate(int file, off_t length) noexcept {
  die_before(file);
  return static_cast<int>(::syscall(SYS_ftruncate, file, length));
}

int ftruncate64(int file, off64_t length) noexcept {
  die_before(file);
  return static_cast<int>(::syscall(SYS_ftruncate, file, length));
}

}  // extern "C"
