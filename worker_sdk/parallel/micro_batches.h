// SPDX-License-Identifier: Apache-2.0
// A batch in parts whose gradients are added up. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun {

struct MicroBatch {
  std::int64_t first = 0, count = 0;  // of the batch's samples
  double weight = 1;  // on its mean loss: so that the sum is the mean over the whole batch
  int index = 0;      // among the batch's parts
};

// `num_parts` parts of sizes that differ by at most one, none empty: fewer where `count` is less.
std::vector<MicroBatch> split_batch(std::int64_t count, int num_parts);

}  // namespace ddprun
