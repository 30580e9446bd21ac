// SPDX-License-Identifier: Apache-2.0
// The global ranks of one node's workers. Plain data.
#pragma once

#include <cstddef>
#include <vector>

namespace ddprun::agent {

struct RankNumbers {
  int first = 0;  // of the node's first worker
  // Where the workers of some local ranks are gone (docs/inplace.md): the local ranks that are
  // left, ascending, numbered from `first` on. Empty: all are there.
  std::vector<int> left = {};

  int of(int local_rank) const {
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i] == local_rank) return first + static_cast<int>(i);
    }
    return left.empty() ? first + local_rank : -1;
  }
};

}  // namespace ddprun::agent
