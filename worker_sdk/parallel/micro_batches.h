// SPDX-License-Identifier: Apache-2.0
// A batch divided into parts whose gradients are added up. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun {

struct MicroBatch {
  std::int64_t first = 0, count = 0;  // samples of the batch
  double weight = 1;  // factor of its mean loss: the weighted sum is the mean over the whole batch
  int index = 0;      // among the batch's parts
};

// Returns `num_parts` parts whose sizes differ by at most one. No part is empty: if `count` is
// less, there are only `count` parts.
std::vector<MicroBatch> split_batch(std::int64_t count, int num_parts);

}  // namespace ddprun
