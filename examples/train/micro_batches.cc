// SPDX-License-Identifier: Apache-2.0
#include "examples/train/micro_batches.h"

#include <algorithm>

namespace ddprun::train {

std::vector<MicroBatch> split_batch(std::int64_t count, int num_parts) {
  const std::int64_t parts = std::min<std::int64_t>(count, num_parts);
  std::vector<MicroBatch> result;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - first;
    result.push_back({first, size, static_cast<double>(size) / static_cast<double>(count)});
  }
  return result;
}

}  // namespace ddprun::train
