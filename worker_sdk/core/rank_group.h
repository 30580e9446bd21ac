// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator that was split from another one: who they are in the job. Pure.
#pragma once

#include <string>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun {

struct RankGroup {
  std::string name;        // empty: no group, but all ranks of the job
  std::vector<int> ranks;  // of the job, in the group's order; empty: no group

  // "group tp (its ranks 0, 1 are the job's 4, 5): "; of many the first. Empty for no group.
  std::string prefix() const;

  // What begins the names of its keys: split_key(), and its first rank.
  std::string key(const std::string& parent_prefix, int count) const;
};

// What begins the names of the keys of a split, fresh for each of a name: `count` were made before.
// The same for all ranks of the communicator that is split.
std::string split_key(const std::string& parent_prefix, const std::string& name, int count);

// The group that `rank` of a communicator of `size` ranks, which is `parent` itself, asks for.
// `place` is its rank there. Throws Error(kInvalidArgument): a rank that isn't one, or is there
// twice, or this one isn't there; no name.
RankGroup make_group(const RankGroup& parent, int rank, int size, const std::vector<int>& ranks,
                     const SplitOptions& options, int* place);

}  // namespace ddprun
