// SPDX-License-Identifier: Apache-2.0
// Memory for arrays that are read from end to end in every step. It is in huge pages if the system
// gives them on request, which saves a walk through the page tables every 4 KiB.
#pragma once

#include <cstddef>

namespace ddprun {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Returns `size_bytes` of zeros, private to this process; munmap() frees them. The memory is
// page-aligned, and from 2 MiB on aligned to huge pages. Linux grants those if
// /sys/kernel/mm/transparent_hugepage/enabled is "madvise" or "always"; otherwise it works, but
// slower. Throws Error(kResourceExhausted).
std::byte* map_large_memory(std::size_t size_bytes);

}  // namespace ddprun
