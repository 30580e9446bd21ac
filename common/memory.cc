// SPDX-License-Identifier: Apache-2.0
#include "common/memory.h"

#include <linux/memfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/error.h"
#include "common/text.h"

namespace ddprun {

void wipe(void* memory, std::size_t size) {
  std::memset(memory, 0, size);
  asm volatile("" : : "r"(memory) : "memory");  // tells the compiler that the memory may be read
}

UniqueFd make_memory_file(const char* name, unsigned flags) {
  UniqueFd file(static_cast<int>(::syscall(SYS_memfd_create, name, flags | MFD_CLOEXEC)));
  if (const int error = errno; !file) throw_system_error(concat("memfd_create of ", name), error);
  return file;
}

}  // namespace ddprun
