// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/large_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("large memory: zeros, aligned to pages, large ones to huge pages, given back by munmap") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, kHugePageBytes,
                                 3 * kHugePageBytes + 1}) {
    std::byte* const memory = map_large_memory(size);
    const std::size_t alignment = size >= kHugePageBytes ? kHugePageBytes : 4096;
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % alignment == 0);
    CHECK(std::all_of(memory, memory + size, [](std::byte each) { return each == std::byte{0}; }));
    std::fill(memory, memory + size, std::byte{1});
    CHECK(::munmap(memory, std::max<std::size_t>(size, 1)) == 0);
  }
}

TEST_CASE("large memory: more than there is, is an error") {
  CHECK_THROWS_AS(map_large_memory(std::numeric_limits<std::size_t>::max() / 4), Error);
}
