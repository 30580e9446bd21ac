// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/parallel/micro_batches.h"

#include <algorithm>

namespace ddprun {

std::vector<MicroBatch> split_batch(std::int64_t count, int num_parts) {
  const std::int64_t parts = std::min<std::int64_t>(count, num_parts);
  std::vector<MicroBatch> result;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - first;
    const double weight = static_cast<double>(size) / static_cast<double>(count);
    result.push_back({first, size, weight, static_cast<int>(part)});
  }
  return result;
}

}  // namespace ddprun
