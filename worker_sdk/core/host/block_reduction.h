// SPDX-License-Identifier: Apache-2.0
// A reduction of any length, block by block: combine, finish, hand the block on while it is in the
// first-level cache. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "worker_sdk/core/host/reduce_kernels.h"

namespace ddprun::host {

inline std::size_t elements_per_block(DType dtype) {
  return kReduceBlockBytes / size_of(accumulator_of(dtype));
}

// For each block of [0, count): reduces sources[i] (in the order of i), finishes it for
// `world_size`, and calls deliver(block bytes, first byte offset, num_bytes). The block is scratch.
// Sources may be overwritten by deliver, at the offsets it is given.
template <typename Deliver>
void reduce_blocks(const std::vector<const std::byte*>& sources, std::size_t count, DType dtype,
                   ReduceOp op, int world_size, const Deliver& deliver) {
  alignas(64) std::byte accumulated[kReduceBlockBytes];
  alignas(64) std::byte narrowed[kReduceBlockBytes / 2];
  const std::size_t element = size_of(dtype);
  const bool widens = accumulator_of(dtype) != dtype;
  std::vector<const void*> at(sources.size());
  for (std::size_t begin = 0; begin < count; begin += elements_per_block(dtype)) {
    const std::size_t length = std::min(elements_per_block(dtype), count - begin);
    for (std::size_t i = 0; i < sources.size(); ++i) at[i] = sources[i] + begin * element;
    reduce_block(accumulated, at.data(), at.size(), length, dtype, op);
    std::byte* const block = widens ? narrowed : accumulated;
    finish_block(block, accumulated, length, dtype, op, world_size);
    deliver(block, begin * element, length * element);
  }
}

}  // namespace ddprun::host
