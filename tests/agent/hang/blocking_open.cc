// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a file server that has fallen silent. Opening a file of the name stuck_worker
// never ends.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

namespace {

int open_or_hang(int directory, const char* path, int flags, mode_t mode) {
  const char* slash = std::strrchr(path, '/');
  while (std::strcmp(slash != nullptr ? slash + 1 : path, "stuck_worker") == 0) ::pause();
  return static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode));
}

}  // namespace

#define DEFINE_OPEN(name)                                     \
  extern "C" int name(const char* path, int flags, ...) {     \
    va_list rest;                                             \
    va_start(rest, flags);                                    \
    const auto mode = static_cast<mode_t>(va_arg(rest, int)); \
    va_end(rest);                                             \
    return open_or_hang(AT_FDCWD, path, flags, mode);         \
  }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
