// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/large_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "common/throw_error.h"

namespace ddprun {

std::byte* map_large_memory(std::size_t size_bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t wanted = (std::max<std::size_t>(size_bytes, 1) + page - 1) / page * page;
  const bool is_huge = wanted >= kHugePageBytes;
  const std::size_t mapped = wanted + (is_huge ? kHugePageBytes : 0);
  void* const found =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) {
    throw_error(ErrorCode::kResourceExhausted, "no memory for ", size_bytes,
                " bytes: ", errno_text(errno));
  }
  auto* const first = static_cast<std::byte*>(found);
  if (!is_huge) return first;
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(first) % kHugePageBytes;
  if (before > 0) ::munmap(first, before);
  ::munmap(first + before + wanted, kHugePageBytes - before);
#ifdef MADV_HUGEPAGE
  ::madvise(first + before, wanted, MADV_HUGEPAGE);  // fails if the kernel has no huge pages
#endif
  return first + before;
}

}  // namespace ddprun
