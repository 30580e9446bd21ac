// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/parallel/micro_batches.h"

#include <algorithm>

#include "tests/support/catch.h"

using namespace ddprun;

TEST_CASE("split_batch: parts cover the batch once, evenly, with weights of their share") {
  for (const std::int64_t count : {1, 2, 7, 37, 64}) {
    for (const int num_parts : {1, 2, 4, 5, 64, 100}) {
      const auto parts = split_batch(count, num_parts);
      REQUIRE(static_cast<std::int64_t>(parts.size()) == std::min<std::int64_t>(count, num_parts));
      std::int64_t next = 0, smallest = count, largest = 0;
      for (const MicroBatch& part : parts) {
        CHECK(part.index == static_cast<int>(&part - parts.data()));
        CHECK(part.first == next);
        CHECK(part.weight == static_cast<double>(part.count) / static_cast<double>(count));
        next += part.count;
        smallest = std::min(smallest, part.count);
        largest = std::max(largest, part.count);
      }
      CHECK(next == count);
      CHECK(largest - smallest <= 1);
      CHECK(smallest >= 1);
    }
  }
  CHECK(split_batch(64, 1).front().weight == 1);
  CHECK(split_batch(0, 4).empty());
}
